//! Language models: runs that learn a text, and the texts that they continue.

use crate::refusing::assert_refused;
use crate::{FILES, ISOGRAD, bits, files, isograd, names, run, saved};
use isograd::models::{CausalLm, CausalLmOptions, Gpt2, Gpt2Options, Pretrained};
use isograd::nn::gguf::{self, Array, TensorType, Value as Metadata};
use isograd::nn::{Init, Module, StateDict};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A small model that learns quickly.
const SMALL: &str = "--layers 1 --width 32 --context 16 --batch-size 8 --lr 0.01";

/// A text of 15 kinds of characters.
fn write_text(folder: &Path) -> PathBuf {
    let path = folder.join("cats.txt");
    fs::write(&path, "the cat sat on the mat.\nthe dog sat on the log.\n".repeat(50)).unwrap();
    path
}

/// Trains on the text; returns the report without its time.
fn train(text: &Path, arguments: &str, out: &Path) -> Value {
    let mut report = isograd(&format!("train text {} --json {SMALL} {arguments}", text.display()), out).json();
    report.as_object_mut().unwrap().remove("seconds").unwrap();
    report
}

fn generate(model: &Path, arguments: &[&str]) -> String {
    let ended = run(&[&["generate", "--model", model.to_str().unwrap()], arguments].concat());
    // A compiler of an OpenCL device may warn.
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

#[test]
fn every_model_learns_a_text_and_continues_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = write_text(folder.path());
    for (model, steps) in [("gpt2", 120), ("lstm", 120), ("gru", 120)] {
        let out = folder.path().join(model);
        let report = train(&text, &format!("--model {model} --steps {steps} --eval-every 60"), &out);
        // Guessing is at ln 15 = 2.7.
        assert!(report["validation_loss"].as_f64().unwrap() < 0.5, "{report}");
        assert_eq!((&report["model"], &report["vocabulary"]), (&model.into(), &15.into()));
        assert_eq!(report["sample"].as_str().unwrap().chars().count(), 200);
        // Beyond the context, with the most likely characters.
        let found = generate(&out, &["--prompt", "the ", "--tokens", "60", "--temperature", "0"]);
        assert_eq!(found.chars().count(), 65, "{found}");
        let known = |word: &str| ["the", "cat", "dog", "sat", "on", "mat.", "log."].contains(&word);
        let words: Vec<&str> = found.split_whitespace().collect();
        assert!(found.starts_with("the ") && words[..words.len() - 1].iter().all(|word| known(word)), "{found}");
    }
}

#[test]
fn the_json_report_of_a_text_has_exactly_these_keys() {
    let folder = tempfile::tempdir().unwrap();
    let (text, out) = (write_text(folder.path()), folder.path().join("out"));
    // Rounded up to three epochs of four steps.
    let report = train(&text, "--steps 9 --eval-every 4 --sample 0", &out);
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    let expected = [
        "best_epoch",
        "dataset",
        "device",
        "epochs",
        "model",
        "parameters",
        "sample",
        "seed",
        "steps",
        "train_loss",
        "validation_loss",
        "vocabulary",
    ];
    assert_eq!(keys, expected);
    assert_eq!((&report["epochs"], &report["steps"], &report["sample"]), (&3.into(), &12.into(), &"".into()));
    let mut expected: Vec<&str> = FILES.to_vec();
    expected.push("tokenizer.json");
    assert_eq!(names(&out), expected);
    let tokenizer: Value = serde_json::from_slice(&fs::read(out.join("tokenizer.json")).unwrap()).unwrap();
    assert_eq!((&tokenizer["isograd"], &tokenizer["characters"]), (&"characters".into(), &"\n .acdeghlmnost".into()));
}

#[test]
fn a_run_on_a_text_tells_what_it_does() {
    let folder = tempfile::tempdir().unwrap();
    let (text, out) = (write_text(folder.path()), folder.path().join("out"));
    let arguments = format!("train text {} {SMALL} --steps 8 --eval-every 4 --sample 12", text.display());
    let ended = isograd(&arguments, &out);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let expected = "cats.txt: 2160 tokens to train on and 240 to validate with, of 15 kinds; gpt2 with ";
    assert!(lines[0].starts_with(expected) && lines[0].ends_with(" parameters on cpu"), "{}", lines[0]);
    assert!(lines[1].starts_with("epoch 1/2  loss ") && lines[1].contains("  validation "), "{}", lines[1]);
    let kept = "is kept, which has the lowest validation loss; 8 steps in ";
    assert!(lines[3].starts_with("validation loss ") && lines[3].contains(kept), "{}", lines[3]);
    assert_eq!(lines[4], "");
    let evaluated = |options: &[&str]| {
        run(&[&["eval", out.to_str().unwrap(), "--json", "--data", text.to_str().unwrap()], options].concat()).json()
    };
    let history = saved(&out)["progress"]["history"].clone();
    assert_eq!(evaluated(&["--last"])["validation_loss"], history[1]["validation_loss"]);
    assert_eq!(evaluated(&[])["tokens"], 240);
    let ended = run(&["eval", out.to_str().unwrap(), "--data", text.to_str().unwrap()]);
    assert!(ended.stdout.starts_with("text: loss ") && ended.stdout.contains(" over 240 tokens; "), "{}", ended.stdout);
}

#[test]
fn the_seed_decides_every_character() {
    let folder = tempfile::tempdir().unwrap();
    let text = write_text(folder.path());
    let runs = [7, 7, 8].map(|seed| {
        let out = folder.path().join(seed.to_string());
        let mut report = train(&text, &format!("--steps 8 --dropout 0.2 --seed {seed}"), &out);
        report.as_object_mut().unwrap().remove("seed").unwrap();
        (report, bits(&out))
    });
    assert_eq!(runs[0], runs[1]);
    assert!(runs[0].0 != runs[2].0 && runs[0].1 != runs[2].1);
    let drawn = |options: &[&str]| {
        generate(&folder.path().join("7"), &[&["--prompt", "a", "--tokens", "30"], options].concat())
    };
    assert_eq!(drawn(&["--seed", "3"]), drawn(&["--seed", "3"]));
    assert_ne!(drawn(&["--seed", "3"]), drawn(&["--seed", "4"]));
    let greedy = drawn(&["--temperature", "0"]);
    assert_eq!([drawn(&["--top-k", "1"]), drawn(&["--top-p", "0.000001"])], [greedy.clone(), greedy]);
}

#[test]
fn opencl_continues_a_text_as_the_cpu_does() {
    let is_required = std::env::var("ISOGRAD_REQUIRE").is_ok_and(|list| list.contains("opencl"));
    if !is_required && "opencl".parse::<isograd::Device>().is_err() {
        return println!("skipped: there is no device opencl:0");
    }
    let folder = tempfile::tempdir().unwrap();
    let text = write_text(folder.path());
    for model in ["gpt2", "lstm"] {
        let out = folder.path().join(model);
        train(&text, &format!("--model {model} --steps 20 --device cpu"), &out);
        let drawn = |device| generate(&out, &["--prompt", "the", "--tokens", "40", "--device", device]);
        assert_eq!(drawn("opencl"), drawn("cpu"), "{model}");
    }
}

#[test]
fn bytes_are_tokens_too() {
    let folder = tempfile::tempdir().unwrap();
    let (text, out) = (folder.path().join("text"), folder.path().join("out"));
    fs::write(&text, [&b"\xff\xfe"[..], "né ".repeat(300).as_bytes()].concat()).unwrap();
    let refused = isograd(&format!("train text {} --json", text.display()), &out);
    assert_refused(&refused, &["is not UTF-8 at byte 0; --tokenizer bytes takes any file"]);
    let report = train(&text, "--tokenizer bytes --steps 60 --model gru", &out);
    assert_eq!(report["vocabulary"], 256);
    // Characters of two bytes come whole.
    let found = generate(&out, &["--prompt", "né ", "--tokens", "8", "--temperature", "0"]);
    assert_eq!(found, "né né né \n");
    let again = isograd(&format!("train text {} --json --steps 120 --resume {}", text.display(), out.display()), &out);
    assert_eq!(again.json()["steps"], 120);
    // A saved tokenizer is a tokenizer by its file.
    let (named, tokenizer) = (folder.path().join("named"), out.join("tokenizer.json"));
    fs::write(&text, "né ".repeat(300)).unwrap();
    let report = train(&text, &format!("--tokenizer {} --steps 2", tokenizer.display()), &named);
    assert_eq!(
        (&report["vocabulary"], &files(&named)["tokenizer.json"]),
        (&256.into(), &files(&out)["tokenizer.json"])
    );
}

/// As `transformers` leaves it, with a tokenizer beside.
#[test]
fn a_folder_of_hugging_face_continues_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let init = Init::new(&isograd::Device::cpu().unwrap());
    let options = Gpt2Options { vocab: 256, context: 8, layers: 1, heads: 2, width: 8, dropout: 0.1 };
    Gpt2::new(&options, &init).unwrap().save(folder.path()).unwrap();
    let refused = run(&["generate", "--model", folder.path().to_str().unwrap()]);
    assert_refused(&refused, &["tokenizer.json: Io: reading failed"]);
    fs::write(folder.path().join("tokenizer.json"), "{\"isograd\":\"bytes\"}").unwrap();
    let found = generate(folder.path(), &["--prompt", "longer than the context", "--tokens", "20", "--top-k", "1"]);
    assert!(found.starts_with("longer than the context"), "{found}");
    // Another decoder, and a GGUF file with the characters of its 40 tokens.
    let options = CausalLmOptions {
        vocab: 256,
        context: 8,
        layers: 1,
        heads: 2,
        key_heads: 1,
        width: 8,
        hidden: 8,
        ..CausalLmOptions::llama2_7b()
    };
    CausalLm::new(&options, &init).unwrap().save(folder.path()).unwrap();
    let found = generate(folder.path(), &["--prompt", "longer than the context", "--tokens", "20", "--top-k", "1"]);
    assert!(found.starts_with("longer than the context"), "{found}");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/hugging_face/mistral/model.gguf");
    assert_refused(&run(&["generate", "--model", file.to_str().unwrap()]), &["--tokenizer FILE"]);
    let characters = folder.path().join("characters.json");
    let all: String = (' '..='G').collect();
    fs::write(&characters, serde_json::json!({ "isograd": "characters", "characters": all }).to_string()).unwrap();
    let characters = characters.to_str().unwrap();
    let found = generate(&file, &["--tokenizer", characters, "--prompt", "ABBA", "--tokens", "100", "--top-k", "1"]);
    assert!(found.starts_with("ABBA") && found.trim_end().len() > 100, "{found}");
}

/// A model with random weights in a folder: its tokens are those of bytes, and the last one ends texts.
pub fn write_model(folder: &Path, context: usize) -> CausalLm {
    let options = CausalLmOptions {
        vocab: 256,
        context,
        layers: 1,
        heads: 2,
        key_heads: 1,
        width: 16,
        hidden: 16,
        ..CausalLmOptions::llama2_7b()
    };
    let model = CausalLm::new(&options, &Init::new(&isograd::Device::cpu().unwrap()).seed(5)).unwrap();
    // The initial weights are small, so that all tokens would be nearly alike.
    for t in model.parameters().iter().filter(|t| t.rank() > 1) {
        isograd::no_grad(|| t.mul_(&t.full_like(30.0)?)).unwrap();
    }
    model.save(folder).unwrap();
    fs::write(folder.join("tokenizer.json"), "{\"isograd\":\"bytes\"}").unwrap();
    model
}

#[test]
fn a_text_ends_where_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), 64);
    let of = |options: &[&str]| {
        generate(folder.path(), &[&["--prompt", "ab", "--tokens", "30", "--temperature", "0"], options].concat())
    };
    // Greedy texts of small models repeat themselves, which a penalty ends.
    let plain = of(&[]);
    let [repetition, presence] = [of(&["--repetition-penalty", "2"]), of(&["--presence-penalty", "100"])];
    assert!(plain != repetition && plain != presence);
    assert_eq!(of(&["--min-p", "0.5"]), plain);
    assert_ne!(of(&["--frequency-penalty", "-0.5"]), plain);
    let tokens = presence.trim_end().chars().skip(2).collect::<Vec<char>>();
    let stop: String = tokens[5..7].iter().collect();
    let before = presence.find(&stop).unwrap();
    let ended = of(&["--presence-penalty", "100", "--stop", "no such text", "--stop", &stop]);
    assert_eq!(ended, format!("{}\n", &presence[..before]));
    for (options, expected) in [
        (["--min-p", "2"], "not a number from 0 to 1"),
        (["--repetition-penalty", "-1"], "not a number of at least 0"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0, expected a number above 0"),
        (["--presence-penalty", "inf"], "presence_penalty is inf"),
    ] {
        let ended = run(&[&["generate", "--model", folder.path().to_str().unwrap()][..], &options].concat());
        assert!(ended.code != Some(0) && ended.stderr.contains(expected), "{}", ended.stderr);
    }
}

/// Byte pairs without merges: 256 bytes, and a token that ends texts.
fn vocabulary() -> (Vec<String>, BTreeMap<String, Metadata>) {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255u8).filter(|b| !printable(b)).zip(0x100u32..);
    let codes: BTreeMap<u8, u32> = others.chain((0..=255u8).filter(printable).map(|b| (b, b.into()))).collect();
    let mut tokens: Vec<String> = codes.values().map(|&code| char::from_u32(code).unwrap().to_string()).collect();
    tokens[0] = "<|im_end|>".into();
    let mut kinds = vec![1; 256];
    kinds[0] = 3;
    let metadata = [
        ("tokenizer.ggml.model", Metadata::Text("gpt2".into())),
        ("tokenizer.ggml.pre", Metadata::Text("qwen2".into())),
        ("tokenizer.ggml.tokens", Metadata::Array(Array::Text(tokens.clone()))),
        ("tokenizer.ggml.token_type", Metadata::Array(Array::I32(kinds))),
        ("tokenizer.ggml.merges", Metadata::Array(Array::Text(Vec::new()))),
        ("tokenizer.ggml.eos_token_id", Metadata::U32(1)),
        ("general.architecture", Metadata::Text("llama".into())),
        ("llama.context_length", Metadata::U32(64)),
        ("llama.block_count", Metadata::U32(1)),
        ("llama.embedding_length", Metadata::U32(16)),
        ("llama.attention.head_count", Metadata::U32(2)),
        ("llama.attention.head_count_kv", Metadata::U32(1)),
        ("llama.feed_forward_length", Metadata::U32(16)),
        ("llama.attention.layer_norm_rms_epsilon", Metadata::F32(1e-5)),
    ];
    (tokens, metadata.map(|(key, value)| (key.to_string(), value)).into())
}

/// Writes a GGUF file of random weights with a vocabulary.
pub fn write_gguf(path: &Path, more: &[(&str, Metadata)]) {
    let (_, mut metadata) = vocabulary();
    metadata.extend(more.iter().map(|(key, value)| (key.to_string(), value.clone())));
    let rng = isograd::Rng::new(3);
    let cpu = isograd::Device::cpu().unwrap();
    let of = |rows: usize, columns: usize| {
        isograd::Tensor::rand((rows, columns), -2.0, 2.0, isograd::DType::F32, &cpu, &rng).unwrap()
    };
    let ones = || isograd::Tensor::ones(16, isograd::DType::F32, &cpu).unwrap();
    let mut tensors = StateDict::new();
    for (name, rows, columns) in [
        ("token_embd", 256, 16),
        ("output", 256, 16),
        ("blk.0.attn_q", 16, 16),
        ("blk.0.attn_k", 8, 16),
        ("blk.0.attn_v", 8, 16),
        ("blk.0.attn_output", 16, 16),
        ("blk.0.ffn_gate", 16, 16),
        ("blk.0.ffn_up", 16, 16),
        ("blk.0.ffn_down", 16, 16),
    ] {
        tensors.insert(format!("{name}.weight"), of(rows, columns));
    }
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        tensors.insert(format!("{name}.weight"), ones());
    }
    gguf::save(path, &tensors, &metadata, |_, _| TensorType::F32).unwrap();
}

#[test]
fn a_gguf_file_has_its_tokenizer_and_its_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_gguf(&path, &[]);
    let of = |options: &[&str]| {
        generate(&path, &[&["--prompt", "Zoë 7", "--tokens", "20", "--temperature", "0"], options].concat())
    };
    let text = of(&["--ignore-eos"]);
    assert!(text.starts_with("Zoë 7") && text.len() > 20, "{text:?}");
    // A token of the text becomes the one that ends texts.
    let rest: Vec<char> = text.trim_end_matches('\n').chars().skip(5).collect();
    let place = (1..rest.len()).find(|&i| rest[i].is_ascii_graphic() && !rest[..i].contains(&rest[i]));
    if let Some(place) = place {
        write_gguf(&path, &[("tokenizer.ggml.eos_token_id", Metadata::U32(u32::from(rest[place])))]);
        let expected: String = "Zoë 7".chars().chain(rest[..place].iter().copied()).collect();
        assert_eq!(of(&[]).trim_end_matches('\n'), expected);
        assert_eq!(of(&["--ignore-eos"]), text);
    }
    let refused = |key: &str, value: Metadata, expected: &[&str]| {
        write_gguf(&path, &[(key, value)]);
        assert_refused(&run(&["generate", "--model", path.to_str().unwrap()]), expected);
    };
    let text = |text: &str| Metadata::Text(text.into());
    refused("tokenizer.ggml.model", text("t5"), &["--tokenizer FILE", "\"t5\", expected gpt2 or llama"]);
    refused("tokenizer.ggml.pre", text("bloom"), &["--tokenizer FILE", "\"bloom\", expected gpt-2"]);
}

#[test]
#[cfg(unix)]
fn a_run_on_a_text_that_was_interrupted_goes_on_with_its_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (text, straight, out) = (write_text(folder.path()), folder.path().join("straight"), folder.path().join("out"));
    let options = "--steps 240 --eval-every 80 --dropout 0.1";
    let expected = train(&text, options, &straight);
    let arguments = format!("train text {} {SMALL} {options} --device cpu --out", text.display());
    let mut command = Command::new(ISOGRAD);
    command.args(arguments.split_whitespace()).arg(&out).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ended: crate::Ended = child.wait_with_output().unwrap().into();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    let steps = saved(&out)["progress"]["steps"].as_u64().unwrap();
    // The run knows where its text is.
    let again = format!("train text --device cpu --resume {}", out.display());
    assert_eq!(ended.stderr, format!("stopped after {steps} steps; go on with: isograd {again}\n"));
    assert!(steps < 240);
    // Within the first epoch there is no best model yet: the last one continues the text.
    assert_eq!(generate(&out, &["--tokens", "5"]).chars().count(), 7);
    let mut report = isograd(&format!("{again} --json"), &out).json();
    report.as_object_mut().unwrap().remove("seconds").unwrap();
    assert_eq!(report, expected);
    assert_eq!(bits(&out), bits(&straight));
    let refused = isograd(&format!("{again} --json --steps 100"), &out);
    assert_refused(&refused, &["has 240 steps already, more than --steps 100"]);
}

#[test]
fn texts_and_options_that_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let (text, out) = (write_text(folder.path()), folder.path().join("out"));
    fs::create_dir(&out).unwrap();
    let refused = |arguments: &str, expected: &str| {
        let arguments = format!("train text {} --json {arguments}", text.display());
        assert_refused(&isograd(&arguments, &out), &[expected]);
        assert_eq!(names(&out), [""; 0], "{arguments}");
    };
    refused("--model lstm --heads 2", "lstm has no heads; --heads is for gpt2");
    refused("--width 30 --heads 4", "4 heads do not divide the width 30");
    refused("--context 240", "has 2160 tokens to train on and 240 to validate with, expected 241 or more of both");
    refused("--validation 0", "0 to validate with");
    refused("--tokenizer words", "words: Io: reading failed");
    refused("--device quantum", "there is no device \"quantum\"");
    let missing = isograd("train text nowhere.txt --json", &out);
    assert_refused(&missing, &["cannot read ", "nowhere.txt: No such file"]);
    for (arguments, expected) in [
        ("train text", "<PATH>"),
        ("train text file --model mlp", "possible values: gpt2, lstm, gru"),
        ("train text file --steps 0", "--steps"),
        ("train text file --eval-every 0", "--eval-every"),
        ("train text file --dropout 1.5", "is not a number from 0 to 1"),
        ("train text file --autocast f32", "is none of f16, bf16"),
        ("train text file --hidden 16", "--hidden"),
        ("train text file --resume out --lr 1", "cannot be used with"),
        ("generate", "--model <DIR>"),
        ("generate --model out --top-p 2", "is not a number from 0 to 1"),
        ("generate --model out --temperature -1", "not a number of at least 0"),
    ] {
        let ended = run(&arguments.split_whitespace().collect::<Vec<_>>());
        assert_eq!(ended.code, Some(2), "{arguments}: {}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{arguments}: {}", ended.stderr);
    }
}

#[test]
fn models_that_do_not_continue_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let (text, out, other) = (write_text(folder.path()), folder.path().join("out"), folder.path().join("digits"));
    let refused = |model: &Path, options: &[&str], expected: &[&str]| {
        assert_refused(&run(&[&["generate", "--model", model.to_str().unwrap()], options].concat()), expected);
    };
    refused(&out, &[], &["has no trained model", "cannot read"]);
    crate::train("--epochs 1", &other);
    refused(&other, &[], &["has no language model"]);
    train(&text, "--steps 2", &out);
    refused(&out, &["--prompt", "the Cat"], &["the prompt has no tokens of this model", "character 4 is 'C'"]);
    refused(&out, &["--prompt", ""], &["the prompt is empty"]);
    refused(&out, &["--top-p", "0"], &["top_p is 0, expected more than 0"]);
    let resumed = isograd(&format!("train text {} --json --resume {}", text.display(), other.display()), &out);
    assert_refused(&resumed, &["is a run of digits, not text"]);
    assert_eq!(run(&["eval", out.to_str().unwrap()]).code, Some(0));
    let moved = text.with_extension("elsewhere");
    fs::rename(&text, &moved).unwrap();
    assert_refused(&run(&["eval", out.to_str().unwrap()]), &[text.to_str().unwrap()]);
    fs::rename(&moved, &text).unwrap();
    let another = folder.path().join("another");
    fs::write(&another, "other text ".repeat(100)).unwrap();
    let resumed = isograd(&format!("train text {} --json --resume {}", another.display(), out.display()), &out);
    assert_refused(&resumed, &["the tokenizer does not fit", "none of the 15 known ones"]);
    fs::write(out.join("tokenizer.json"), "{}").unwrap();
    refused(&out, &[], &["tokenizer.json: Format: not a tokenizer"]);
}
