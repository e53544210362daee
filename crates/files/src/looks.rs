//! The formats of other programs, by the first bytes of their files, and how their content gets here.

/// A format, the bytes at an offset by which it is known, and the conversion.
struct Format {
    name: &'static str,
    at: usize,
    magic: &'static [u8],
    convert: &'static str,
}

const fn format(name: &'static str, at: usize, magic: &'static [u8], convert: &'static str) -> Format {
    Format { name, at, magic, convert }
}

/// For weights that a Python program can load.
const SAVE: &str =
    "in Python, load it and write its tensors with safetensors.torch.save_file(tensors, \"model.safetensors\")";
const RESAVE: &str = "in Python: torch.save(torch.load(path, weights_only=True), path), with PyTorch 1.6 or later";
const UNPACK: &str = "unpack it first";
const ARRAYS: &str = "isograd::data::npy reads it";
const TABLES: &str = "isograd::data::csv reads it, with the feature `parquet` of isograd-data";

/// Longer magic comes before shorter.
const FORMATS: &[Format] = &[
    format("a safetensors file", 8, b"{\"", "isograd::nn::load reads it"),
    format("an HDF5 file, as Keras writes", 0, b"\x89HDF\r\n\x1a\n", SAVE),
    format(
        "a GGUF file, as llama.cpp reads",
        0,
        b"GGUF",
        "isograd::nn::load reads it, and isograd::nn::gguf its metadata",
    ),
    format("a GGML file of an earlier llama.cpp", 0, b"lmgg", "load the folder of the network that it was made from"),
    format("a GGML file of an earlier llama.cpp", 0, b"tjgg", "load the folder of the network that it was made from"),
    format(
        "a pointer of git LFS in place of the file",
        0,
        b"version https://git-lfs.github.com/spec/",
        "run `git lfs pull` in its folder, or download the file itself",
    ),
    format("a web page", 0, b"<!DOCTYPE", "download the file itself: the server sent a page in its place"),
    format("a web page", 0, b"<!doctype", "download the file itself: the server sent a page in its place"),
    format("a web page", 0, b"<html", "download the file itself: the server sent a page in its place"),
    format("a web page", 0, b"<HTML", "download the file itself: the server sent a page in its place"),
    format("XML", 0, b"<?xml", "download the file itself: the server sent a message in its place"),
    format("an array of NumPy", 0, b"\x93NUMPY", ARRAYS),
    format("a Parquet file", 0, b"PAR1", TABLES),
    format("an Arrow file", 0, b"ARROW1", TABLES),
    format("a TensorFlow Lite model", 4, b"TFL3", SAVE),
    format(
        "a file of torch.save in the format before PyTorch 1.6",
        0,
        // The first pickle of three is a magic number.
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
        RESAVE,
    ),
    format("a tar archive, as PyTorch wrote before version 0.1.10", 257, b"ustar", RESAVE),
    format("a 7z archive", 0, b"7z\xbc\xaf\x27\x1c", UNPACK),
    format("a file packed by xz", 0, b"\xfd7zXZ\0", UNPACK),
    format("a file packed by zstd", 0, b"\x28\xb5\x2f\xfd", UNPACK),
    format("a file packed by bzip2", 0, b"BZh", UNPACK),
    format("a zip archive", 0, b"PK\x03\x04", UNPACK),
    format("an empty zip archive", 0, b"PK\x05\x06", "look for the file that was meant"),
    format("a file packed by gzip", 0, b"\x1f\x8b", UNPACK),
    format("an image", 0, b"\x89PNG", "isograd::data::images reads it"),
    format("an image", 0, b"\xff\xd8\xff", "isograd::data::images reads it"),
    format("a PDF file", 0, b"%PDF", "look for the file that was meant"),
    format("a program", 0, b"\x7fELF", "look for the file that was meant"),
    format("a pickle of Python without tensors' storages", 0, b"\x80\x02", SAVE),
    format("a pickle of Python without tensors' storages", 0, b"\x80\x03", SAVE),
    format("a pickle of Python without tensors' storages", 0, b"\x80\x04", SAVE),
    format("a pickle of Python without tensors' storages", 0, b"\x80\x05", SAVE),
];

/// A sentence with the format of a file, by its first bytes, and the conversion to a format that is read; `None` for an unknown format:
/// `it looks like an HDF5 file, as Keras writes; in Python, ..`.
pub fn looks_like(bytes: &[u8]) -> Option<String> {
    let said = |name: &str, convert: &str| Some(format!("it looks like {name}; {convert}"));
    if bytes.is_empty() {
        return Some("it is empty".into());
    }
    let is = |format: &&Format| bytes.get(format.at..).is_some_and(|rest| rest.starts_with(format.magic));
    if let Some(format) = FORMATS.iter().find(is) {
        return said(format.name, format.convert);
    }
    if is_onnx(bytes) {
        return said("an ONNX model", "isograd::onnx::load opens it");
    }
    let text = bytes.trim_ascii_start();
    if text.starts_with(b"{") || text.starts_with(b"[") {
        return said("JSON", "look for the file of the weights beside it; an index of several files ends in .json");
    }
    None
}

/// ONNX has no magic: a message whose first field is the version of the format, a small number, and whose second is the producer's name,
/// its version, or the graph. Source: `onnx.proto`, the message `ModelProto`.
fn is_onnx(bytes: &[u8]) -> bool {
    matches!(bytes, [0x08, 1..=32, 0x12 | 0x1a | 0x3a | 0x42, length, ..] if *length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_others_are_named_with_the_conversion() {
        let tar = [&[b'x'; 257][..], b"ustar\0"].concat();
        for (bytes, expected) in [
            (&b"\x89HDF\r\n\x1a\n\0\0"[..], "looks like an HDF5 file, as Keras writes; in Python, load it"),
            (b"GGUF\x03\0\0\0", "looks like a GGUF file, as llama.cpp reads; isograd::nn::load reads it"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "run `git lfs pull`"),
            (b"<!DOCTYPE html><html>", "looks like a web page; download the file itself"),
            (b"\x08\x08\x12\x07pytorch\x1a", "looks like an ONNX model; isograd::onnx::load opens it"),
            (
                b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02",
                "before PyTorch 1.6; in Python: torch.save(torch.load",
            ),
            (b"\x80\x04\x95", "a pickle of Python"),
            (b"\x1f\x8b\x08", "looks like a file packed by gzip"),
            (&tar, "a tar archive"),
            (b" {\n", "looks like JSON"),
            (b"", "it is empty"),
        ] {
            let looks = looks_like(bytes).unwrap();
            assert!(looks.contains(expected), "{looks}");
        }
        assert_eq!(looks_like(b"1.5,2,3\n"), None);
    }
}
