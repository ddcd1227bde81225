"""The size of a vocabulary that the arguments leave to the tokenizer."""

from __future__ import annotations

import re

ASSUMED = 128_000
# Tokenizers by what their names contain, the more special first; sizes as their models' config.json have them.
SIZES = (
    (r"llama-?3|llama_?3", 128_256),
    (r"llama-?4", 202_048),
    (r"llama|mixtral|mistral-7b|sentencepiece.*llama|vicuna|alpaca", 32_000),
    (r"mistral-nemo|mistral_nemo|tekken", 131_072),
    (r"mistral", 32_768),
    (r"qwen-?(2|3|1\.5)|qwen", 151_936),
    (r"deepseek-?v?-?3|deepseek-?r1", 129_280),
    (r"deepseek-?v?-?2|deepseek", 102_400),
    (r"gemma-?3", 262_144),
    (r"gemma", 256_000),
    (r"gpt-?neox|pythia|neox", 50_432),
    (r"o200k|gpt-?oss", 201_088),
    (r"gpt2|gpt-2|gpt2bpe|hftokenizer-gpt2", 50_257),
    (r"bloom|bigscience", 250_880),
    (r"falcon", 65_024),
    (r"starcoder|santacoder|bigcode", 49_152),
    (r"glm-?4", 151_552),
    (r"yi-|/yi", 64_000),
    (r"baichuan-?2", 125_696),
    (r"baichuan", 64_000),
    (r"olmo", 100_352),
    (r"phi-?3|phi-?4", 100_352),
    (r"kimi|moonlight", 163_840),
)


THOUSANDS = re.compile(r"(?<![a-z0-9])(\d{2,3})k(?![a-z0-9])")
WHOLE = re.compile(r"(?<![0-9a-z.])([3-9]\d{4}|[1-3]\d{5})(?![0-9a-z.])")


def size_of(*names: str | None) -> int | None:
    """Return the size that one of the names of a tokenizer tells, None where none does."""
    for name in names:
        text = (name or "").casefold()
        if (told := THOUSANDS.search(text)) and "bigscience" not in text:
            return 1000 * int(told[1])
        if told := WHOLE.search(text):
            return int(told[1])
        for pattern, size in SIZES:
            if text and re.search(pattern, text):
                return size
    return None
