"""Random models in the layouts of BGE-M3, its reranker and Qwen3; at a tiny shape or the real one.

They need torch and transformers, and say nothing about quality. Their tokenizers know the words of one text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from kgray.runtime.fit import config_of

Shape = Literal["tiny", "real"]
WORDS = (
    "Alice works at Acme in Berlin and likes tea. Bob moved to Paris last May. The quick brown fox jumps "
    "over the lazy dog while Dana sails to Oslo. "
) * 20
_PLACES = 514  # positions of the tiny encoder; two of them are unused by tokens
_BGE = config_of("BAAI/bge-m3")
_QWEN = config_of("Qwen/Qwen3-8B-FP8")
_ENCODER: Mapping[Shape, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
             "max_position_embeddings": _PLACES},
    "real": {key: value for key, value in _BGE.items() if key != "model_type"},
}  # fmt: skip
_ENGINE: Mapping[Shape, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
             "head_dim": 32, "intermediate_size": 128, "tie_word_embeddings": True},
    "real": {key: value for key, value in _QWEN.items() if key != "quantization_config"},
}  # fmt: skip


def tokenizer(folder: Path, *, unigram: bool, length: int) -> int:
    """Write a tokenizer of this text's words into a folder; return the number of its tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    if unigram:
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        result = Tokenizer(models.Unigram())
        result.pre_tokenizer = pre_tokenizers.Metaspace()
        result.decoder = decoders.Metaspace()
        trainer: Any = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token=special[3])
        names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
        names |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    else:
        special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        result = Tokenizer(models.BPE())
        result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        result.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=344, special_tokens=special, initial_alphabet=alphabet)
        names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    result.train_from_iterator([WORDS], trainer)
    if unigram:
        ids = [(token, result.token_to_id(token)) for token in ("<s>", "</s>")]
        result.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ids
        )
    _write_tokenizer(folder, result, length, names, chat=not unigram)
    return int(result.get_vocab_size())


def _write_tokenizer(folder: Path, result: Any, length: int, names: Mapping[str, str], *, chat: bool) -> None:  # noqa: ANN401 - of tokenizers
    """Write a tokenizer and its config. chat: with a template of messages."""
    result.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": length,
        **names,
    }
    if chat:
        config["chat_template"] = (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def bge(folder: Path, shape: Shape = "tiny", *, reranker: bool = False) -> Path:
    """Write a random model in the layout of BGE-M3 (tiny: 64 wide, 2 layers, 512 tokens), or its reranker."""
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification, XLMRobertaModel

    folder.mkdir(parents=True)
    torch.manual_seed(7)
    sizes = _ENCODER[shape]
    places = sizes["max_position_embeddings"]
    token_count = tokenizer(folder, unigram=True, length=places - 2)
    config = XLMRobertaConfig(
        **{"vocab_size": token_count, **sizes}, type_vocab_size=1, bos_token_id=0, pad_token_id=1,
        eos_token_id=2,
        num_labels=1, initializer_range=0.5 if shape == "tiny" else 0.02,
    )  # fmt: skip
    if reranker:
        XLMRobertaForSequenceClassification(config).save_pretrained(folder)
        return folder
    XLMRobertaModel(config).save_pretrained(folder)
    for name, width in (("colbert_linear", sizes["hidden_size"]), ("sparse_linear", 1)):
        torch.save(torch.nn.Linear(sizes["hidden_size"], width).state_dict(), folder / f"{name}.pt")
    return folder


# Models whose weights vLLM generates: their configs are used at the real shape.
_CONFIGS: Mapping[str, str] = {"8b": "Qwen/Qwen3-8B-FP8", "30b": "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8"}
_FP8 = {
    "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 8, "decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": []}
_WIDE = 151_000  # tokens of the real shapes' vocabulary


def wide_tokenizer(folder: Path, count: int) -> int:
    """Write a tokenizer of at least `count` tokens: bytes, and pairs and triples of letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = {name: at for at, name in enumerate([*names, *pre_tokenizers.ByteLevel.alphabet()])}
    merges: list[tuple[str, str]] = []
    pairs = [a + b for a in letters for b in letters]
    for first, second in [*((pair[0], pair[1]) for pair in pairs), *((a, b) for a in pairs for b in letters)]:
        if len(vocabulary) >= count:
            break
        merges.append((first, second))
        vocabulary[first + second] = len(vocabulary)
    result = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens(names)
    _write_tokenizer(folder, result, 8192, {"eos_token": names[2], "pad_token": names[0]}, chat=True)
    return len(vocabulary)


def config_alone(folder: Path, size: str, shape: Shape = "tiny") -> Path:
    """Write the config and the tokenizer of an engine, without weights. size: 8b, or 30b with experts."""
    folder.mkdir(parents=True)
    token_count = wide_tokenizer(folder, 2000 if shape == "tiny" else _WIDE)
    moe = size == "30b"
    sizes: dict[str, Any] = dict(_ENGINE["tiny"])
    if shape == "real":
        sizes = {**config_of(_CONFIGS[size]), "quantization_config": _FP8}
    elif moe:
        sizes |= {"num_experts": 8, "moe_intermediate_size": 64}
    config = {
        "architectures": ["Qwen3MoeForCausalLM" if moe else "Qwen3ForCausalLM"],
        "model_type": "qwen3_moe" if moe else "qwen3",
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "max_position_embeddings": 8192,
        "dtype": "bfloat16", "bos_token_id": 0, "pad_token_id": 0, "eos_token_id": 2,
        **(_EXPERTS if moe else {}), **sizes, "vocab_size": max(token_count, sizes.get("vocab_size", 0)),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def config_alone_of(folder: Path, size: str, shape: Shape) -> Path:
    """Return the folder of an engine's config and tokenizer; write it if it is missing."""
    path = folder / f"{size}-{shape}"
    return path if path.exists() else config_alone(path, size, shape)


def qwen(folder: Path, shape: Shape = "tiny") -> Path:
    """Write a random Qwen3 with a chat template: of 96 thousand parameters, or in the shape of Qwen3-8B."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder.mkdir(parents=True)
    torch.manual_seed(7)
    token_count = tokenizer(folder, unigram=False, length=8192)
    config = Qwen3Config(
        **{"vocab_size": token_count, **_ENGINE[shape]},
        max_position_embeddings=8192,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.set_default_dtype(torch.bfloat16)
    try:
        Qwen3ForCausalLM(config).save_pretrained(folder)
    finally:
        torch.set_default_dtype(torch.float32)
    return folder
