"""Tiny GLUE files of random words, and a tiny random BERT with its tokenizer on disk."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = tuple(f"word{number}" for number in range(20))
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def write_glue(root: Path, *, train: int = 40, test: int = 16) -> Path:
    """The files of all tasks below a folder, which is returned; the label is told by the first word."""
    generator = torch.Generator().manual_seed(0)

    def sentence() -> str:
        size = int(torch.randint(2, 7, (), generator=generator))
        return " ".join(WORDS[place] for place in torch.randint(len(WORDS), (size,), generator=generator).tolist())

    def rows(count):
        for _ in range(count):
            first = sentence()
            yield first, sentence(), WORDS.index(first.split()[0]) % 2

    def write(name, count, line, *, head=None, end="\n", begin=""):
        path = root / "glue" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ([] if head is None else [head]) + [line(place, *row) for place, row in enumerate(rows(count))]
        path.write_bytes((begin + "".join(f"{one}{end}" for one in lines)).encode())

    names = ("entailment", "not_entailment")
    rte = {"line": lambda n, a, b, y: f"{n}\t{a}\t{b}\t{names[y]}", "head": "index\tsentence1\tsentence2\tlabel"}
    mrpc = {
        "line": lambda n, a, b, y: f"{y}\t{n}\t{n}\t{a}\t{b}", "head": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "end": "\r\n", "begin": "\ufeff",
    }  # fmt: skip
    cola = {"line": lambda n, a, b, y: f"gj04\t{y}\t{'' if y else '*'}\t{a}"}
    sst2 = {"line": lambda n, a, b, y: f"{a} \t{y}", "head": "sentence\tlabel"}
    stsb = {"line": lambda n, a, b, y: f"main\tset\t2012\t{n}\t{y + n % 4:.3f}\t{a}\t{b}"}
    nli, blank = ("entailment", "neutral"), "\t".join(["-"] * 7)
    mnli = {"line": lambda n, a, b, y: f"{n}\t{blank}\t{a}\t{b}\t-\t{nli[y]}", "head": "index\t...\tgold_label"}
    qnli = {"line": lambda n, a, b, y: f"{n}\t{a}\t{b}\t{names[y]}", "head": "index\tquestion\tsentence\tlabel"}
    qqp = {
        "line": lambda n, a, b, y: f"{n}\t{2 * n}\t{2 * n + 1}\t{a}\t{b}\t{y}",
        "head": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    }
    wnli = {"line": lambda n, a, b, y: f"{n}\t{a}\t{b}\t{y}", "head": "index\tsentence1\tsentence2\tlabel"}
    for title, dev, task in (("MNLI", "dev_matched", mnli), ("QNLI", "dev", qnli), ("QQP", "dev", qqp)):
        write(f"{title}/train.tsv", train, **task)
        write(f"{title}/{dev}.tsv", test, **task)
    write("RTE/train_part1.tsv", train // 2, **rte)
    write("RTE/train_part2.tsv", train - train // 2, **{**rte, "head": None})
    write("RTE/dev.tsv", test, **rte)
    write("MRPC/msr_paraphrase_train.txt", train, **mrpc)
    write("MRPC/msr_paraphrase_test.txt", test, **mrpc)
    write("CoLA/train.tsv", train, **cola)
    write("CoLA/dev.tsv", test, **cola)
    for name, size in (("train", train), ("dev", test), ("test-labeled", test)):
        write(f"SST-2/{name}.tsv", size, **sst2)
    for name, size in (("train", train), ("dev", test), ("test", test)):
        write(f"STS-B/sts-{name}.csv", size, **stsb)
    write("WNLI/train.tsv", train, **wnli)
    write("WNLI/dev.tsv", test, **wnli)
    return root


def write_bert(folder: Path, *, positions: int = 40, safe: bool = True) -> Path:
    """A BERT without an output layer, and a tokenizer of whole words, in a folder, which is returned."""
    ids = {word: place for place, word in enumerate((*SPECIAL, *WORDS))}
    words = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=len(ids), max_position_embeddings=positions, **SIZES))
    model.save_pretrained(folder)
    if not safe:
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return folder
