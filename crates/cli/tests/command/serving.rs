//! A model over HTTP: `isograd serve`, with requests as they are on the wire.

use crate::refusing::assert_refused;
use crate::talking::TEMPLATE;
use crate::text::write_model;
use crate::{ISOGRAD, run};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A server with a small model.
struct Server {
    child: Child,
    address: String,
    /// Kept open: the server may print.
    _stdout: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(context: usize, arguments: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), context);
        fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
        let mut command = Command::new(ISOGRAD);
        command.args(["serve", "--port", "0", "--name", "tiny", "--device", "cpu", "--model"]).arg(folder.path());
        let mut child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut stdout, mut line) = (BufReader::new(child.stdout.take().unwrap()), String::new());
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("tiny at http://").and_then(|rest| rest.strip_suffix("/v1"));
        let address = address.unwrap_or_else(|| panic!("{line}")).to_string();
        Server { child, address, _stdout: stdout, folder }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends a request, whose answer is not read yet.
    fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: tiny\r\nConnection: close\r\nContent-Length: {}", body.len());
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        stream
    }

    fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        received(self.send(method, path, body))
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.request("POST", path, &body.to_string());
        (status, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
    }

    fn metric(&self, name: &str) -> u64 {
        let (_, page) = self.request("GET", "/metrics", "");
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_string));
        line.unwrap_or_else(|| panic!("{name}: {page}")).parse().unwrap()
    }

    /// Waits until a number has a value.
    fn wait_for(&self, name: &str, expected: u64) {
        let start = Instant::now();
        while self.metric(name) != expected {
            assert!(start.elapsed() < Duration::from_secs(30), "{name} is {}, expected {expected}", self.metric(name));
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[cfg(unix)]
    fn stop(&mut self, signal: &str) -> Option<i32> {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

/// The status and the body of an answer.
fn received(mut stream: TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, if head.to_lowercase().contains("transfer-encoding: chunked") { joined(body) } else { body.to_string() })
}

/// The chunks of a body.
fn joined(mut body: &str) -> String {
    let mut found = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        found += &rest[..length];
        body = rest[length..].trim_start_matches("\r\n");
    }
    found
}

/// The events of a stream, without the last one, which ends it.
fn events(body: &str) -> Vec<Value> {
    let all: Vec<&str> = body.split("\n\n").filter(|event| !event.is_empty()).collect();
    assert_eq!(all.last(), Some(&"data: [DONE]"), "{body}");
    let data = all[..all.len() - 1].iter().map(|event| event.strip_prefix("data: ").unwrap());
    data.map(|event| serde_json::from_str(event).unwrap()).collect()
}

fn completion(prompt: &str, tokens: usize) -> Value {
    json!({ "model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true })
}

/// The text that `isograd generate` writes after a prompt.
fn continued(folder: &Path, prompt: &str, tokens: usize) -> String {
    let (model, tokens) = (folder.to_str().unwrap(), tokens.to_string());
    let ended = run(&["generate", "--model", model, "--temperature", "0", "--tokens", &tokens, "--prompt", prompt]);
    ended.stdout[prompt.len()..].strip_suffix('\n').unwrap().to_string()
}

#[test]
fn texts_come_whole_and_in_parts() {
    let server = Server::start(256, &[]);
    let folder = server.folder.path();
    let expected = continued(folder, "Once", 24);
    let (status, body) = server.post("/v1/completions", &completion("Once", 24));
    assert_eq!((status, &body["choices"][0]["text"]), (200, &expected.as_str().into()), "{body}");
    assert_eq!((&body["object"], &body["model"]), (&"text_completion".into(), &"tiny".into()));
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["usage"], json!({ "prompt_tokens": 4, "completion_tokens": 24, "total_tokens": 28 }));
    // The same prompt as tokens, and in parts.
    let mut request = completion("", 24);
    request["prompt"] = json!("Once".as_bytes());
    assert_eq!(server.post("/v1/completions", &request).1["choices"][0]["text"], expected.as_str());
    request["stream"] = true.into();
    let (status, body) = server.request("POST", "/v1/completions", &request.to_string());
    let parts = events(&body);
    let text: String = parts.iter().map(|part| part["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!((status, text), (200, expected.clone()));
    assert!(parts.len() > 5 && parts[parts.len() - 1]["choices"][0]["finish_reason"] == "length", "{body}");
    // A conversation.
    let messages = json!([{ "role": "system", "content": "S" }, { "role": "user", "content": [{ "type": "text", "text": "Hi" }] }]);
    let answer = continued(folder, "s:S;u:Hi;a:", 24);
    let mut request = json!({ "messages": messages, "max_completion_tokens": 24, "temperature": 0 });
    let (_, body) = server.post("/v1/chat/completions", &request);
    let message = json!({ "role": "assistant", "content": answer });
    assert_eq!((&body["choices"][0]["message"], &body["object"]), (&message, &"chat.completion".into()));
    request["stream"] = true.into();
    request["stream_options"] = json!({ "include_usage": true });
    let parts = events(&server.request("POST", "/v1/chat/completions", &request.to_string()).1);
    assert_eq!(parts[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    let text = parts.iter().filter_map(|part| part["choices"][0]["delta"]["content"].as_str()).collect::<String>();
    assert_eq!(text, answer);
    let last = &parts[parts.len() - 1];
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &24.into()));
    // A text ends the answer, and is no part of it.
    let stop: String = expected.chars().skip(6).take(2).collect();
    let mut request = completion("Once", 24);
    request["stop"] = json!(["no such text", stop]);
    let choice = &server.post("/v1/completions", &request).1["choices"][0];
    assert_eq!(choice["text"], expected[..expected.find(&stop).unwrap()]);
    assert_eq!(choice["finish_reason"], "stop");
    // Draws are those of the seed.
    let drawn = |seed: i64| {
        let request = json!({ "prompt": "Once", "seed": seed, "max_tokens": 20, "top_k": 50, "presence_penalty": 0.5 });
        server.post("/v1/completions", &request).1["choices"][0]["text"].as_str().unwrap().to_string()
    };
    assert!(drawn(1) == drawn(1) && drawn(1) != drawn(-2));
}

#[test]
fn vectors_of_texts_have_the_length_one() {
    let server = Server::start(64, &[]);
    let (status, body) = server.post("/v1/embeddings", &json!({ "input": ["one", "two", "one"] }));
    let vectors: Vec<Vec<f64>> =
        (0..3).map(|i| serde_json::from_value(body["data"][i]["embedding"].clone()).unwrap()).collect();
    assert_eq!((status, vectors[0].len(), &body["usage"]["total_tokens"]), (200, 16, &9.into()));
    assert!(vectors[0] == vectors[2] && vectors[0] != vectors[1]);
    let length: f64 = vectors[1].iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    // The bytes of 16 floats.
    let body = server.post("/v1/embeddings", &json!({ "input": "one", "encoding_format": "base64" })).1;
    let text = body["data"][0]["embedding"].as_str().unwrap();
    assert!(text.len() == 88 && text.ends_with("=="), "{text}");
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let bits = text.bytes().take(6).fold(0u64, |bits, c| bits << 6 | u64::from(digit(c)));
    let first = f32::from_le_bytes(((bits >> 4) as u32).to_be_bytes());
    assert!((f64::from(first) - vectors[0][0]).abs() < 1e-6, "{first}");
    let (status, body) = server.post("/v1/embeddings", &json!({ "input": "one", "dimensions": 4 }));
    assert_eq!((status, &body["error"]["param"]), (400, &"dimensions".into()));
}

#[test]
fn requests_at_a_time_get_what_they_get_alone() {
    let server = Server::start(256, &["--slots", "3"]);
    let prompts: Vec<String> = (0..9).map(|i| format!("{i} prompt of its own{}", "!".repeat(i * 5))).collect();
    let of = |prompt: &str| {
        let (status, body) = server.post("/v1/completions", &completion(prompt, 20 + prompt.len()));
        assert_eq!(status, 200, "{body}");
        body["choices"][0]["text"].clone()
    };
    let alone: Vec<Value> = prompts.iter().map(|prompt| of(prompt)).collect();
    let together: Vec<Value> = thread::scope(|scope| {
        let all: Vec<_> = prompts.iter().map(|prompt| scope.spawn(|| of(prompt))).collect();
        all.into_iter().map(|each| each.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
    assert_eq!(server.metric("isograd_requests_total{path=\"/v1/completions\",status=\"200\"}"), 18);
    server.wait_for("isograd_requests_running", 0);
}

#[test]
fn requests_that_are_wrong_get_an_error_object() {
    let server = Server::start(32, &["--max-bytes", "4000"]);
    let refused = |path: &str, body: &str, status: u16, part: &str| {
        let (found, text) = server.request("POST", path, body);
        let error: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let message = error["error"]["message"].as_str().unwrap_or_else(|| panic!("{text}"));
        assert!(found == status && message.contains(part), "{body}: {found} {message}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
    };
    let completions = |body: &str, part: &str| refused("/v1/completions", body, 400, part);
    completions("", "the body is not JSON");
    completions("{\"prompt\": ", "the body is not JSON");
    completions("[1]", "not an object");
    completions("\u{0}\u{1}", "the body is not JSON");
    completions("{}", "prompt is missing");
    completions(r#"{"prompt": 3}"#, "prompt is neither");
    completions(r#"{"prompt": ""}"#, "no tokens");
    completions(r#"{"prompt": ["a", "b"]}"#, "one text in a request");
    completions(r#"{"prompt": [1, 256]}"#, "there is no token 256, expected one in 0..256");
    completions(r#"{"prompt": [1, -1]}"#, "there is no token -1");
    completions(&json!({ "prompt": "a".repeat(33) }).to_string(), "has 33 tokens, and the context is 32");
    completions(&json!({ "prompt": "a".repeat(32) }).to_string(), "has 32 tokens, and the context is 32");
    for (field, value) in [
        ("temperature", json!(-1)),
        ("temperature", json!("hot")),
        ("top_p", json!(0)),
        ("top_k", json!(-1)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(1.5)),
        ("stop", json!([1])),
        ("stream", json!("yes")),
        ("seed", json!("a")),
        ("presence_penalty", json!(3)),
        ("n", json!(2)),
        ("logprobs", json!(5)),
        ("logit_bias", json!({ "1": 2 })),
        ("echo", json!(true)),
    ] {
        completions(&json!({ "prompt": "a", field: value }).to_string(), field);
    }
    // What changes nothing is taken.
    let harmless = json!({ "prompt": "a", "n": 1, "logprobs": null, "echo": false, "user": "me", "max_tokens": 2 });
    assert_eq!(server.post("/v1/completions", &harmless).0, 200);
    let chats = |body: Value, part: &str| refused("/v1/chat/completions", &body.to_string(), 400, part);
    chats(json!({}), "a list of one message or more");
    chats(json!({ "messages": [] }), "a list of one message or more");
    chats(json!({ "messages": [{ "content": "a" }] }), "no role");
    chats(json!({ "messages": [{ "role": "user" }] }), "no content");
    let image = json!({ "type": "image_url", "image_url": { "url": "x" } });
    chats(json!({ "messages": [{ "role": "user", "content": [image] }] }), "is no text");
    chats(json!({ "messages": [{ "role": "user", "content": "a" }], "tools": [{ "type": "function" }] }), "tools");
    refused("/v1/completions", &json!({ "prompt": "a", "model": "other" }).to_string(), 404, "only \"tiny\"");
    refused("/v1/completions", &json!({ "prompt": "a".repeat(5000) }).to_string(), 413, "longer than 4000 bytes");
    refused("/v1/nothing", "{}", 404, "no such path");
    refused("/health", "", 405, "no such method");
    assert_eq!(server.request("GET", "/health", ""), (200, "{\"status\":\"ok\"}".into()));
    let models: Value = serde_json::from_str(&server.request("GET", "/v1/models", "").1).unwrap();
    assert_eq!((&models["data"][0]["id"], models["data"].as_array().unwrap().len()), (&"tiny".into(), 1));
    assert_eq!(
        [server.request("GET", "/v1/models/tiny", "").0, server.request("GET", "/v1/models/b", "").0],
        [200, 404]
    );
    assert_eq!(server.metric("isograd_requests_total{path=\"/v1/completions\",status=\"413\"}"), 1);
}

#[test]
fn a_client_that_goes_frees_its_slot_and_a_full_queue_refuses() {
    let server = Server::start(100_000, &["--slots", "1", "--queue", "2"]);
    // An answer that takes long, of which only the beginning is read.
    let mut request = completion("long", 90_000);
    request["stream"] = true.into();
    let mut long = server.send("POST", "/v1/completions", &request.to_string());
    let mut beginning = [0; 400];
    long.read_exact(&mut beginning).unwrap();
    assert!(beginning.starts_with(b"HTTP/1.1 200 OK"));
    let short = completion("short", 3).to_string();
    let waiting = [0; 2].map(|_| server.send("POST", "/v1/completions", &short));
    server.wait_for("isograd_requests_waiting", 2);
    let (status, text) = server.request("POST", "/v1/completions", &short);
    let error: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &error["error"]["type"]), (429, &"rate_limit_error".into()));
    // The server is there for others all the time.
    assert_eq!(server.request("GET", "/health", "").0, 200);
    drop(long);
    for stream in waiting {
        assert_eq!(received(stream).0, 200);
    }
    server.wait_for("isograd_disconnected_total", 1);
    // Clients that do not wait for a whole answer, in the slot and in the queue.
    let cut = [0; 2].map(|_| server.send("POST", "/v1/completions", &completion("long", 90_000).to_string()));
    server.wait_for("isograd_requests_running", 1);
    drop(cut);
    server.wait_for("isograd_disconnected_total", 3);
    // Half a request.
    let mut half = server.connect();
    half.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: tiny\r\nContent-Length: 100\r\n\r\n{\"prompt\"").unwrap();
    drop(half);
    let mut garbage = server.connect();
    garbage.write_all(b"\x16\x03\x01 no HTTP\r\n\r\n").unwrap();
    assert_eq!(received(garbage).0, 400);
    assert_eq!(server.post("/v1/completions", &completion("short", 3)).0, 200);
}

#[test]
fn a_request_that_takes_too_long_ends() {
    let server = Server::start(100_000, &["--timeout", "1"]);
    let (status, body) = server.post("/v1/completions", &completion("long", 90_000));
    assert_eq!((status, &body["error"]["type"]), (504, &"server_error".into()), "{body}");
    let mut request = completion("long", 90_000);
    request["stream"] = true.into();
    let (status, body) = server.request("POST", "/v1/completions", &request.to_string());
    assert!(status == 200 && body.contains("longer than --timeout") && !body.contains("[DONE]"), "{body}");
    assert_eq!(server.post("/v1/completions", &completion("short", 3)).0, 200);
}

#[test]
#[cfg(unix)]
fn a_signal_lets_answers_end_and_then_the_server() {
    for signal in ["-INT", "-TERM"] {
        let mut server = Server::start(2_000, &[]);
        let stream = server.send("POST", "/v1/completions", &completion("some", 300).to_string());
        server.wait_for("isograd_requests_running", 1);
        assert_eq!(server.stop(signal), Some(0));
        let (status, body) = received(stream);
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &body["usage"]["completion_tokens"]), (200, &300.into()), "{body}");
        assert!(TcpStream::connect(&server.address).is_err());
    }
    // An answer that goes on for longer than ten seconds is cut.
    let mut server = Server::start(1_000_000, &[]);
    let stream = server.send("POST", "/v1/completions", &completion("some", 900_000).to_string());
    server.wait_for("isograd_requests_running", 1);
    let start = Instant::now();
    assert_eq!(server.stop("-TERM"), Some(0));
    assert!((9..20).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!(received(stream).0, 503);
}

#[test]
fn servers_that_do_not_start() {
    let server = Server::start(32, &[]);
    let port = server.address.rsplit(':').next().unwrap();
    let model = server.folder.path().to_str().unwrap();
    let refused = |arguments: &[&str], expected: &str| {
        assert_refused(&run(&[&["serve", "--model"], arguments].concat()), &[expected]);
    };
    refused(&[model, "--port", port], "cannot listen at 127.0.0.1:");
    refused(&["nowhere"], "nowhere has no trained model");
    refused(&[model, "--device", "quantum"], "there is no device \"quantum\"");
    assert_eq!(run(&["serve", "--model", model, "--slots", "0"]).code, Some(2));
}
