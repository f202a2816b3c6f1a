"""What a parallel text holds."""


def pairs(text):
    return list(zip(text.source, text.target, strict=True))
