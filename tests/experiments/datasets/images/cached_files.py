"""The files in a folder of cached arrays."""


def files(folder, ending):
    return sorted(path for path in folder.iterdir() if path.name.endswith(ending))
