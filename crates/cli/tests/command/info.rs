//! `isograd info`.

use crate::refusing::assert_refused;
use crate::run;
use std::fs;
use std::path::Path;

fn golden(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name).display().to_string()
}

fn printed(path: &str) -> Vec<String> {
    let ended = run(&["info", path]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn a_gguf_file_is_listed_in_its_order() {
    let lines = printed(&golden("gguf_files/types.gguf"));
    let tensors: Vec<&String> = lines.iter().filter(|line| line.ends_with(" bytes")).collect();
    assert_eq!((tensors.len(), tensors[0].as_str()), (25, "F32 F32 [2, 3] 24 bytes"));
    assert!(lines.contains(&"Q4_K Q4_K [2, 1024] 1152 bytes".to_string()), "{lines:?}");
    assert!(lines.contains(&"IQ2_XXS IQ2_XXS [1, 256] 66 bytes".to_string()), "{lines:?}");
    assert!(lines.last().unwrap().starts_with("25 tensors, "), "{lines:?}");
    let lines = printed(&golden("gguf_files/metadata.gguf"));
    assert_eq!(lines[0], "bool true");
    for line in [
        "text größer",
        "general.alignment 64",
        "tokenizer.ggml.tokens [<s>, </s>, ▁a, é, ] (5)",
        "2 tensors, 5 numbers",
    ] {
        assert!(lines.contains(&line.to_string()), "{line}: {lines:?}");
    }
}

#[test]
fn other_files_of_weights_are_listed_too() {
    let lines = printed(&golden("torch_files/views.pt"));
    assert!(
        lines.contains(&"transposed [6, 4]".to_string()) && lines.last().unwrap().starts_with("15 tensors, "),
        "{lines:?}"
    );
    assert!(printed(&golden("hugging_face/gpt2")).iter().any(|line| line.starts_with("transformer.wte.weight [")));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, &fs::read(golden("gguf_files/types.gguf")).unwrap()[..5000]).unwrap();
    assert_refused(
        &run(&["info", path.to_str().unwrap()]),
        &["model.gguf", "not a whole GGUF file", "the file has 5000"],
    );
    fs::write(&path, "text").unwrap();
    assert_refused(&run(&["info", path.to_str().unwrap()]), &["model.gguf", "not a whole safetensors file"]);
}
