//! Files of PyTorch's `torch.save`, which `tests/golden/torch_files.py` writes.

use crate::common::cpu;
use isograd_core::{DType, Error, Kind, Tensor};
use isograd_nn::{Contents, StateDict, load, load_checked, load_part};
use std::fs;
use std::path::{Path, PathBuf};

fn at(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/torch_files").join(name)
}

fn read(name: &str) -> Contents {
    load(at(name), &cpu()).unwrap()
}

/// The tensors of a file as PyTorch reads them.
fn expected(file: &str) -> StateDict {
    let all = read("expected.safetensors").tensors;
    let prefix = format!("{file}/");
    all.into_iter().filter_map(|(name, t)| Some((name.strip_prefix(&prefix)?.to_string(), t))).collect()
}

fn content(state: &StateDict) -> Vec<(&String, DType, Vec<usize>, Vec<u8>)> {
    state.iter().map(|(name, t)| (name, t.dtype(), t.dims().to_vec(), t.to_bytes().unwrap())).collect()
}

#[test]
fn tensors_are_those_that_pytorch_saved() {
    for file in [
        "state.pt",
        "protocol_5.pt",
        "parameters.pt",
        "dtypes.pt",
        "views.pt",
        "checkpoint.pt",
        "lists.pt",
        "no_checksum.pt",
    ] {
        let expected = expected(file);
        assert!(!expected.is_empty(), "{file}");
        assert_eq!(content(&read(file).tensors), content(&expected), "{file}");
    }
    assert_eq!(read("dtypes.pt").skipped, [("complex64".to_string(), "complex64".to_string())].into());
    let error = load_part(at("dtypes.pt"), &cpu(), |name| name.starts_with("complex")).unwrap_err();
    assert!(error.message().contains("complex64 is complex64, which cannot be read"), "{error}");
    assert_eq!(load_part(at("dtypes.pt"), &cpu(), |name| name == "int8").unwrap().len(), 1);
}

#[test]
fn names_of_one_tensor_share_memory() {
    let state = read("views.pt").tensors;
    assert!(state["tied"].shares_memory(&state["tied_too"]));
    assert_eq!(state["expanded"].layout().strides(), [1, 0]);
}

#[test]
fn a_checkpoint_gives_its_model_and_its_numbers() {
    let checkpoint = read("checkpoint.pt");
    let texts: Vec<(&str, &str)> = checkpoint.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let steps = ("steps", "1099511627776");
    assert_eq!(texts, [("done", "false"), ("epoch", "3"), ("loss", "0.5"), ("name", "a run"), steps]);
    assert!(checkpoint.tensors.keys().all(|name| !name.contains("exp_avg")));
}

#[test]
fn a_folder_may_have_files_of_pytorch() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(at("no_checksum.pt"), folder.path().join("pytorch_model-2.bin")).unwrap();
    fs::copy(at("parameters.pt"), folder.path().join("pytorch_model-1.bin")).unwrap();
    let index = r#"{"weight_map": {"w": "pytorch_model-2.bin", "frozen": "pytorch_model-1.bin"}}"#;
    fs::write(folder.path().join("pytorch_model.bin.index.json"), index).unwrap();
    let all = load(folder.path(), &cpu()).unwrap().tensors;
    assert_eq!(all.keys().collect::<Vec<_>>(), ["frozen", "w"]);
    fs::copy(at("state.pt"), folder.path().join("pytorch_model.bin")).unwrap();
    assert_eq!(load(folder.path(), &cpu()).unwrap().tensors.len(), 9);
}

fn refused(path: &Path) -> Error {
    let error = load(path, &cpu()).map(|contents| contents.tensors).unwrap_err();
    assert_eq!((error.kind(), error.op()), (Kind::Format, path.display().to_string().as_str()), "{error}");
    error
}

#[test]
fn files_that_need_a_program_are_refused_by_name() {
    for (file, expected) in [
        ("module.pt", "it needs torch.nn.modules.container.Sequential of a Python program, which is not run"),
        ("namespace.pt", "it needs argparse.Namespace of a Python program, which is not run; save the tensors alone"),
        ("tensor.pt", "it holds one tensor, expected a dictionary of tensors"),
        ("legacy.pt", "it looks like a file of torch.save in the format before PyTorch 1.6; in Python: torch.save("),
        ("script.pt", "it looks like a TorchScript program; in Python"),
    ] {
        let error = refused(&at(file));
        assert!(error.message().contains(expected), "{error}");
    }
    let error = load_checked(at("state.pt"), &cpu()).unwrap_err();
    assert!(error.kind() == Kind::Format && error.message().contains("no checksum"), "{error}");
}

/// An archive of `torch.save` with this pickle and one storage of 8 bytes, without checksums.
fn archive(pickle: &[u8]) -> Vec<u8> {
    let files = [("x/data.pkl", pickle), ("x/data/0", &[1, 0, 0, 0, 2, 0, 0, 0])];
    let (mut bytes, mut list) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let [length, name_length] = [content.len() as u32, name.len() as u32].map(u32::to_le_bytes);
        // No flags, not compressed, no time, no checksum.
        let common = [&[20, 0][..], &[0; 12], &length, &length, &name_length[..2], &[0; 2]].concat();
        let start = bytes.len() as u32;
        bytes.extend([b"PK\x03\x04", &common[..], name.as_bytes(), content].concat());
        list.extend([b"PK\x01\x02\x14\0", &common[..], &[0; 10], &start.to_le_bytes(), name.as_bytes()].concat());
    }
    let [start, length] = [bytes.len() as u32, list.len() as u32].map(u32::to_le_bytes);
    [&bytes[..], &list, b"PK\x05\x06\0\0\0\0\x02\0\x02\0", &length, &start, &[0; 2]].concat()
}

/// The pickle of `{"w": tensor}` with a view of the storage, whose numbers are below 256.
fn tensor(offset: u8, shape: &[u8], strides: &[u8]) -> Vec<u8> {
    let numbers =
        |numbers: &[u8]| [b"(", &numbers.iter().flat_map(|&n| [b'K', n]).collect::<Vec<u8>>()[..], b"t"].concat();
    let storage = b"(X\x07\0\0\0storagectorch\nIntStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02tQ";
    let head = b"\x80\x02}(X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(";
    [&head[..], storage, &[b'K', offset], &numbers(shape), &numbers(strides), b"\x89}tRu."].concat()
}

fn read_pickle(pickle: &[u8]) -> isograd_core::Result<StateDict> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), archive(pickle)).unwrap();
    load(file.path(), &cpu()).map(|contents| contents.tensors)
}

#[test]
fn views_stay_within_their_storage() {
    let values = |t: &Tensor| t.to_vec::<i32>().unwrap();
    assert_eq!(values(&read_pickle(&tensor(0, &[2], &[1])).unwrap()["w"]), [1, 2]);
    assert_eq!(values(&read_pickle(&tensor(1, &[2, 1], &[0, 7])).unwrap()["w"]), [2, 2]);
    assert_eq!(read_pickle(&tensor(9, &[0, 5], &[9, 9])).unwrap()["w"].dims(), [0, 5]);
    // A tensor that repeats one element takes no memory for each.
    let wide = read_pickle(&tensor(0, &[200, 200, 200, 200, 2], &[0, 0, 0, 0, 1])).unwrap();
    assert_eq!(wide["w"].dims(), [200, 200, 200, 200, 2]);
    for (offset, shape, strides, message) in [
        (1, &[2][..], &[1][..], "w: its elements are outside of its storage of 8 bytes"),
        (2, &[1], &[1], "outside of its storage"),
        (0, &[2], &[2], "outside of its storage"),
        (0, &[2], &[1, 1], "its pickle is damaged"),
        (0, &[1; 40], &[1; 40], "has rank 40"),
    ] {
        let error = read_pickle(&tensor(offset, shape, strides)).unwrap_err();
        assert!(error.kind() == Kind::Format && error.message().contains(message), "{error}");
    }
}

#[test]
fn pickles_of_other_objects_are_refused() {
    for (pickle, message) in [
        (
            &b"\x80\x02cposix\nsystem\nX\x02\0\0\0ls\x85R."[..],
            "it needs posix.system of a Python program, which is not run",
        ),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "it needs posix.system"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "its pickle has an object of a class"),
        (b"\x80\x02\x8f.", "its pickle has a set"),
        (b"\x80\x02]q\0h\0a.", "it holds no dictionary"),
        (b"\x80\x02}X\x01\0\0\0a", "its pickle is cut off"),
        (b"\x80\x02}X\xff\xff\xff\xffa.", "its pickle is cut off"),
        (b"\x80\x02}(u\x93.", "its pickle is damaged"),
        (b"\x80\x02}R.", "its pickle is damaged"),
        (b"\x80\x02\x85.", "its pickle is damaged"),
        (b"\x80\x02}\xee.", "there is no instruction 0xee"),
        // A dictionary within itself, and lists that hold each other twice, 63 deep.
        (b"\x80\x02}q\0X\x01\0\0\0ah\0s.", "it has more than 64 containers within each other"),
        (
            &[&b"\x80\x02}X\x01\0\0\0a]"[..], &b"q\x000]h\0ah\0a".repeat(63), b"s."].concat(),
            "its content would take more than 32 times the ",
        ),
    ] {
        let error = read_pickle(pickle).unwrap_err();
        assert!(error.kind() == Kind::Format && error.message().contains(message), "{error}");
    }
    // Numbers and texts alone are no tensors, and no error.
    assert!(read_pickle(b"\x80\x02}X\x01\0\0\0aK\x05s.").unwrap().is_empty());
}

#[test]
fn a_text_with_many_names_is_not_copied_for_each() {
    // A text of 1 MB, which 100,000 keys have.
    let text = [&b"X\x40\x42\x0f\0"[..], &vec![b'a'; 1_000_000], b"q\0"].concat();
    let mut pickle = [&b"\x80\x02}(X\x01\0\0\0b"[..], &text].concat();
    for i in 0u32..100_000 {
        pickle.extend([&b"J"[..], &i.to_le_bytes(), b"h\0"].concat());
    }
    pickle.extend(b"u.");
    let error = read_pickle(&pickle).unwrap_err();
    assert!(error.message().contains("would take more than 32 times the "), "{error}");
    // A shape that many tensors have.
    let shape = [&b"("[..], &b"K\x01".repeat(100_000), b"tq\0"].concat();
    let storage = b"(X\x07\0\0\0storagectorch\nIntStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02tQq\x01";
    let mut pickle = [&b"\x80\x02}("[..], b"K\0", &shape, b"K\0", storage].concat();
    for _ in 0..10_000 {
        pickle.extend(b"K\0ctorch._utils\n_rebuild_tensor_v2\n(h\x01K\0h\0h\0\x89}tR");
    }
    pickle.extend(b"u.");
    let error = read_pickle(&pickle).unwrap_err();
    assert!(error.message().contains("would take more than 32 times the "), "{error}");
}

#[test]
fn names_of_one_storage_share_memory() {
    let one = tensor(0, &[2], &[1]);
    // The dictionary with the entry a second time, by another name.
    let entry = &one[3..one.len() - 2];
    let other = [b"X\x01\0\0\0v", &entry[7..]].concat();
    let loaded = read_pickle(&[&one[..one.len() - 2], &other, b"u."].concat()).unwrap();
    assert_eq!((loaded.len(), loaded["w"].key()), (2, loaded["v"].key()));
}
