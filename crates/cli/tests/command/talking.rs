//! Conversations: `isograd chat`.

use crate::refusing::assert_refused;
use crate::text::{write_gguf, write_model};
use crate::{Ended, ISOGRAD, run};
use isograd::nn::gguf::Value;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

pub const TEMPLATE: &str =
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

fn talk(model: &Path, lines: &str, arguments: &[&str]) -> Ended {
    let mut command = Command::new(ISOGRAD);
    command.args(["chat", "--model", model.to_str().unwrap(), "--temperature", "0"]).args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command may have ended already.
    let _ = child.stdin.take().unwrap().write_all(lines.as_bytes());
    child.wait_with_output().unwrap().into()
}

/// The text that follows a prompt, as `generate` has it.
fn continued(model: &Path, prompt: &str, tokens: &str) -> String {
    let model = model.to_str().unwrap();
    let ended = run(&["generate", "--model", model, "--temperature", "0", "--tokens", tokens, "--prompt", prompt]);
    ended.stdout[prompt.len()..].to_string()
}

#[test]
fn each_line_is_answered_in_turn() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), 512);
    fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let ended = talk(folder.path(), "one\n\n \ntwo\r\nthree", &["--tokens", "12", "--system", "S"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let mut conversation = "s:S;".to_string();
    let mut expected = String::new();
    for line in ["one", "two", "three"] {
        conversation += &format!("u:{line};a:");
        let answer = continued(folder.path(), &conversation, "12");
        conversation += &format!("{};", answer.strip_suffix('\n').unwrap());
        expected += &answer;
    }
    assert_eq!(ended.stdout, expected);
    // A text of the answer ends it.
    let first = continued(folder.path(), "u:one;a:", "12");
    let stop: String = first.chars().skip(3).take(2).collect();
    let ended = talk(folder.path(), "one\n", &["--tokens", "12", "--stop", &stop]);
    assert_eq!(ended.stdout, format!("{}\n", &first[..first.find(&stop).unwrap()]));
    assert_eq!(talk(folder.path(), "", &[]).stdout, "");
}

#[test]
fn the_oldest_messages_go_when_the_context_is_full() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), 48);
    fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let lines = "one\ntwo\nthree\nfour\nfive\n";
    let ended = talk(folder.path(), lines, &["--tokens", "9", "--system", "S"]);
    assert!(ended.code == Some(0) && ended.stderr.contains("its oldest messages are left out"), "{}", ended.stderr);
    let refused = talk(folder.path(), &"long ".repeat(20), &[]);
    assert_refused(&refused, &["the message has 105 tokens", "and the context is 48"]);
}

#[test]
fn a_gguf_file_has_its_template() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_gguf(&path, &[]);
    assert_refused(&talk(&path, "one\n", &[]), &["model.gguf has no chat template"]);
    write_gguf(&path, &[("tokenizer.chat_template", Value::Text(TEMPLATE.replace("m.role[0]", "eos_token")))]);
    let ended = talk(&path, "one\n", &["--tokens", "8"]);
    assert_eq!((ended.code, ended.stdout), (Some(0), continued(&path, "\u{1}:one;a:", "8")), "{}", ended.stderr);
    write_gguf(&path, &[("tokenizer.chat_template", Value::Text("{{ raise_exception('no talk') }}".into()))]);
    assert_refused(&talk(&path, "one\n", &[]), &["no talk"]);
}

#[test]
#[cfg(unix)]
fn an_interrupt_ends_a_conversation() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), 512);
    fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let mut command = Command::new(ISOGRAD);
    command.args(["chat", "--tokens", "3", "--device", "cpu", "--model", folder.path().to_str().unwrap()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"one\n").unwrap();
    let mut byte = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    // Stdin is still open. (A compiler of an OpenCL device would take the signal for itself.)
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(input);
}
