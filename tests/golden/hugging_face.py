"""Write small transformers with random weights, as Hugging Face's `transformers` saves them, and what it computes with them.

    python -m venv venv && venv/bin/pip install torch==2.11.0 transformers safetensors gguf
    venv/bin/python tests/golden/hugging_face.py

Each network is a folder under `hugging_face/`: `config.json` and weights in f32, and `expected.safetensors` with inputs and results.
Results are computed in f64. `tests/transformers.rs` reads all of it. README.md says which versions wrote the files.
"""

import pathlib
import shutil
import tempfile

import gguf
import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

HERE = pathlib.Path(__file__).parent / "hugging_face"
VOCAB, WIDTH, HEADS, LAYERS, CONTEXT = 96, 32, 4, 2, 24


def randomize(model):
    """Weights that make large scores and logits, so that no parameter is without effect."""
    for name, p in model.named_parameters():
        is_norm_weight = p.dim() == 1 and name.endswith("weight")
        p.data = torch.randn_like(p) * 0.2 + (1.0 if is_norm_weight else 0.0)
    return model.eval()


def write(name, model, expected, **options):
    """The results of `expected(model)` for the weights that are written, which are rounded to f32."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    randomize(model).save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tensors = {key: t.detach().contiguous() for key, t in expected(model.double()).items()}
    save_file(tensors, folder / "expected.safetensors")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {sorted(file.name for file in folder.iterdir())}, {size} bytes")


def tokens(*shape):
    return torch.randint(0, VOCAB, shape)


def losses(model, batches, steps):
    """Of each step of AdamW, before the step. Step i has batch `i mod len(batches)`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    found = []
    for step in range(steps):
        batch = batches[step % len(batches)]
        loss = F.cross_entropy(model(batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found, dtype=torch.float64)


def gpt2(model):
    x, batches = tokens(2, 12), tokens(4, 2, 13)
    logits = model(x).logits.float()
    return {"tokens": x, "logits": logits, "batches": batches, "losses": losses(model, batches, 20)}


def llama(model):
    x = tokens(2, CONTEXT)
    return {"tokens": x, "logits": model(x).logits.float()}


def bert(model):
    x = tokens(2, 10)
    segments = (torch.arange(10) >= torch.tensor([[4], [7]])).long()
    attended = torch.arange(10) < torch.tensor([[10], [6]])
    y = model(x, token_type_ids=segments, attention_mask=attended.long())
    plain = model(x)
    return {
        "tokens": x,
        "segments": segments,
        "attended": attended,
        "features": y.last_hidden_state.float(),
        "pooled": y.pooler_output.float(),
        "plain": plain.last_hidden_state.float(),
    }


def vit(model):
    x = torch.randn(2, 3, 12, 12)
    return {"images": x, "logits": model(x.double()).logits.float()}


# Extents of the decoders of `causal`.
SMALL = {
    "vocab_size": 40, "max_position_embeddings": 80, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "attn_implementation": "eager",
    "experts_implementation": "eager",
}
# Positions that differ from those of the first training in each way that a file can say.
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.1, 1.5, 2.0], "long_factor": [2.0, 4.0, 8.0]}
LONG |= {"original_max_position_embeddings": 20, "partial_rotary_factor": 0.75}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 20}
WINDOWS = ["sliding_attention", "full_attention"]


def causal():
    """Decoders by the names of their folders: the class, and the options that differ from `SMALL`."""
    eights = {"num_key_value_heads": 1}
    return {
        "mistral": ("Mistral", {"sliding_window": 8}),
        "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "rope_parameters": YARN}),
        "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
        "gemma": ("Gemma", eights),
        "gemma2": ("Gemma2", {
            "sliding_window": 8, "layer_types": WINDOWS, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        }),
        "gemma3": ("Gemma3", {
            "sliding_window": 8, "layer_types": WINDOWS, "query_pre_attn_scalar": 20,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        }),
        "phi3": ("Phi3", {
            "hidden_size": 32, "sliding_window": 30, "original_max_position_embeddings": 20, "rope_parameters": LONG,
            "pad_token_id": 0,
        }),
        "gpt_neox": ("GPTNeoX", {
            "hidden_size": 32, "head_dim": None, "num_key_value_heads": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        }),
        "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        "qwen2_moe": ("Qwen2Moe", {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20,
        }),
        "qwen3_moe": ("Qwen3Moe", {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True,
        }),
    }


def of_decoder(model):
    """Logits of two sequences, the tokens that greedy decoding continues one with, and gradients of a loss, by the names of files."""
    x = torch.randint(0, SMALL["vocab_size"], (2, 19))
    logits = model(x).logits
    F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
    found = x[:1, :6]
    with torch.no_grad():
        for _ in range(13 if model.config.model_type == "phi3" else 64):
            found = torch.cat([found, model(found).logits[:, -1].argmax(-1, keepdim=True)], 1)
    # More positions than the first training had.
    long = torch.randint(0, SMALL["vocab_size"], (1, 40))
    logits_of_long = model(long).logits.float()
    for p in model.parameters():
        p.data = torch.zeros_like(p) if p.grad is None else p.grad
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        gradients = load_file(pathlib.Path(folder) / "model.safetensors")
    gradients = {f"d {name}": t.float() for name, t in gradients.items() if "layers.1." in name}
    of_long = {"long": long, "logits of long": logits_of_long} if model.config.model_type == "phi3" else {}
    return {"tokens": x, "logits": logits.float(), "greedy": found, **of_long, **gradients}


def permuted(weight, heads):
    """Rows of heads with the pairs that are rotated as neighbours, as files of LLaMA have them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(name, arch):
    """The folder of a decoder as a GGUF file in f32, with the names of the package `gguf`."""
    folder, kind = HERE / name, gguf.MODEL_ARCH_NAMES[arch]
    config = transformers.AutoConfig.from_pretrained(folder)
    tensors = {key: t.numpy() for key, t in load_file(folder / "model.safetensors").items()}
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(folder / "model.gguf", kind)
    heads, keys = config.num_attention_heads, getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(keys)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    head = head if kind != "gptneox" else config.hidden_size // heads
    writer.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1.0)))
    if kind == "gptneox":
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_parallel_residual(config.use_parallel_residual)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_key_length(head)
        writer.add_value_length(head)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if kind == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        for which in ["long", "short"]:
            writer.add_tensor(f"rope_factors_{which}.weight", numpy.array(rope[f"{which}_factor"], numpy.float32))
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if kind == "qwen2moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    stacked = {}
    for key, t in sorted(tensors.items()):
        if ".experts." in key:
            before, after = key.split(".experts.")
            number, weight = after.split(".", 1)
            stacked.setdefault((before, weight), {})[int(number)] = t
            continue
        if kind == "llama" and ("q_proj" in key or "k_proj" in key):
            t = permuted(t, heads if "q_proj" in key else keys)
        if kind == "gemma2" and "norm" in key:
            t = t + 1
        if "query_key_value" in key:
            parts = t.reshape(heads, 3, head, *t.shape[1:])
            t = numpy.concatenate([parts[:, i].reshape(-1, *t.shape[1:]) for i in range(3)])
        writer.add_tensor(names.get_name(key, (".weight", ".bias")), t)
    for (before, weight), each in stacked.items():
        t = numpy.stack([each[i] for i in range(experts)])
        weight = weight.removesuffix(".weight")
        writer.add_tensor(names.get_name(f"{before}.experts.{weight}.weight", (".weight",)), t)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: model.gguf, {(folder / 'model.gguf').stat().st_size} bytes")


# The decoders that are GGUF files too.
GGUF = {
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "gpt_neox": gguf.MODEL_ARCH.GPTNEOX,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
}


def main():
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    # The attention of plain products.
    plain = {"attn_implementation": "eager"}
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **plain,
    )
    write("gpt2", transformers.GPT2LMHeadModel(config), gpt2)
    # Heads of queries share keys, and are wider than the width divided by their number. Pairs of a head's elements are slow, fast and
    # between. Weights are in several files.
    scaling = {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0,
        "original_max_position_embeddings": 16,
    }
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=CONTEXT, hidden_size=WIDTH, intermediate_size=48,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5,
        rope_parameters=scaling, **plain,
    )
    write("llama", transformers.LlamaForCausalLM(config), llama, max_shard_size="60KB")
    config = transformers.BertConfig(
        vocab_size=VOCAB, max_position_embeddings=CONTEXT, hidden_size=WIDTH, intermediate_size=64,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        **plain,
    )
    write("bert", transformers.BertModel(config), bert)
    config = transformers.ViTConfig(
        image_size=12, patch_size=4, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_labels=5, **plain,
    )
    write("vit", transformers.ViTForImageClassification(config), vit)
    for name, (kind, options) in causal().items():
        torch.manual_seed(0)
        text = "Text" if kind == "Gemma3" else ""
        config = getattr(transformers, f"{kind}{text}Config")(**{k: v for k, v in {**SMALL, **options}.items() if v is not None})
        write(name, getattr(transformers, f"{kind}ForCausalLM")(config), of_decoder)
    for name, arch in GGUF.items():
        write_gguf(name, arch)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
