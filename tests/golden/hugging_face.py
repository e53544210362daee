"""Write small transformers with random weights, as Hugging Face's `transformers` saves them, and what it computes with them.

    python -m venv venv && venv/bin/pip install torch==2.11.0 transformers safetensors
    venv/bin/python tests/golden/hugging_face.py

Each network is a folder under `hugging_face/`: `config.json` and weights in f32, and `expected.safetensors` with inputs and results.
Results are computed in f64. `tests/transformers.rs` reads all of it. README.md says which versions wrote the files.
"""

import pathlib
import shutil

import torch
import transformers
from safetensors.torch import save_file
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
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
