"""Write small vocabularies as GGUF files have them, and the tokens that the libraries they come from make of texts.

    python -m venv venv && venv/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3
    venv/bin/python crates/data/tests/vocabularies.py
"""

import io
import json
import pathlib

import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent

CORPUS = [
    "The sea is calm tonight, and the moon lies fair upon the straits.",
    "On the French coast the light gleams and is gone; the cliffs of England stand.",
    "It's what they're saying: we'll see 1234567 ships in 2026, won't we?",
    "fn main() {\n    println!(\"hello\");\n}\n\n\n",
    "Listen! you hear the grating roar of pebbles which the waves draw back, and fling.",
] * 4
TEXTS = [
    "The sea is calm tonight.",
    "  two blanks, and  more   inside ",
    "It'S they'RE 1234567 2026!?\n\n  fn main()\n",
    "é ☃ 🦀 naïve \t tab",
    "",
    "\n",
    "<|end|>The</s> sea<s>",
]
PATTERNS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-2": None,
}


def byte_pairs(pre, pattern):
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=340, special_tokens=["<|end|>"], initial_alphabet=alphabet))
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "vocabulary": {
            "model": "gpt2",
            "pre": pre,
            "tokens": tokens,
            "kinds": [3 if token == "<|end|>" else 1 for token in tokens],
            "merges": [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]],
        },
        "expected": [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS],
    }


def pieces():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, model_type="bpe", vocab_size=420, byte_fallback=True,
        character_coverage=1.0, normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(processor.vocab_size())

    def kind(i):
        return 2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1

    # The library does not look for control tokens in texts.
    return {
        "vocabulary": {
            "model": "llama",
            "tokens": [processor.id_to_piece(i) for i in ids],
            "scores": [processor.get_score(i) for i in ids],
            "kinds": [kind(i) for i in ids],
            "bos": processor.bos_id(),
        },
        "expected": [processor.encode(text) for text in TEXTS[:-1]],
    }


def main():
    cases = [byte_pairs(pre, pattern) for pre, pattern in PATTERNS.items()] + [pieces()]
    text = json.dumps({"texts": TEXTS, "cases": cases}, ensure_ascii=False)
    (HERE / "vocabularies.json").write_text(text + "\n", encoding="utf-8")


main()
