//! `isograd serve`: a language model over HTTP, as OpenAI's clients speak.

mod api;
mod engine;
mod metrics;

use crate::run::device;
use crate::text::Source;
use crate::{parse, print};
use anyhow::{Context, Result, bail};
use api::{ApiError, Fields, Head, Input, Kind, answer, base64, now, usage};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use clap::Args;
use engine::{EmbedJob, Engine, Event, Failure, Job, TextJob};
use futures_core::Stream;
use isograd::data::Tokenizer;
use isograd::data::chat::ChatTemplate;
use metrics::Metrics;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// How long a client may take to send a body.
const BODY_TIME: Duration = Duration::from_secs(30);
/// How long answers may go on once the server is told to stop.
const GRACE: Duration = Duration::from_secs(10);
/// The most texts of a request for vectors.
const MOST_TEXTS: usize = 256;

/// The options of `isograd serve`.
#[derive(Args, Debug)]
pub struct Serve {
    #[command(flatten)]
    source: Source,
    /// The address to listen at: others than this machine's own are open to whoever reaches it
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// The port to listen at; 0 for any that is free
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// The name of the model for clients [default: that of its folder or file]
    #[arg(long)]
    name: Option<String>,
    /// Texts that are continued at a time
    #[arg(long, default_value_t = 8, value_parser = parse::count)]
    slots: usize,
    /// Requests that may wait for a slot; others get the status 429
    #[arg(long, default_value_t = 64, value_parser = parse::count)]
    queue: usize,
    /// Seconds that a request may take
    #[arg(long, default_value_t = 600, value_parser = parse::count)]
    timeout: usize,
    /// Tokens of an answer, at most [default: what the context has room for]
    #[arg(long, value_parser = parse::count)]
    max_tokens: Option<usize>,
    /// Bytes of a request, at most
    #[arg(long, default_value_t = 4 << 20, value_parser = parse::count)]
    max_bytes: usize,
}

/// What all requests share.
struct Server {
    name: String,
    tokenizer: Arc<dyn Tokenizer>,
    template: Option<ChatTemplate>,
    context: usize,
    jobs: SyncSender<Job>,
    metrics: Arc<Metrics>,
    timeout: Duration,
    max_tokens: usize,
    max_bytes: usize,
    created: u64,
    requests: AtomicU64,
}

/// Serves until Ctrl-C or SIGTERM.
pub fn run(options: Serve) -> Result<ExitCode> {
    let tokenizer: Arc<dyn Tokenizer> = options.source.tokenizer()?.into();
    let template = options.source.template(&*tokenizer)?;
    let stem = |path: &std::path::Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = options.name.clone().or_else(|| stem(&std::path::absolute(&options.source.path).ok()?));
    let (jobs, receiver) = sync_channel(options.queue);
    let (metrics, cut) = (Arc::new(Metrics::default()), Arc::new(AtomicBool::new(false)));
    let (ready, loaded) = std::sync::mpsc::channel();
    let thread = {
        let (tokenizer, metrics, cut) = (tokenizer.clone(), metrics.clone(), cut.clone());
        let (source, slots) = (options.source.clone(), options.slots);
        let work = move || -> Result<()> {
            let device = device(source.device.as_deref())?;
            let (stops, model) = (source.stop_tokens()?, source.model(tokenizer.vocabulary(), &device)?);
            let model = model.cached().context("the model is recurrent, and only models with attention are served")?;
            let _ = ready.send(model.context());
            let tokenizer = &*tokenizer;
            Engine { model, tokenizer, stops, slots, metrics: &metrics, cut: &cut }.run(&receiver)
        };
        std::thread::Builder::new().name("model".into()).spawn(work).context("there is no thread for the model")?
    };
    let Ok(context) = loaded.recv() else { return Err(ended(thread)) };
    let server = Arc::new(Server {
        name: name.unwrap_or_else(|| "model".into()),
        tokenizer,
        template,
        context,
        jobs,
        metrics,
        timeout: Duration::from_secs(options.timeout as u64),
        max_tokens: options.max_tokens.unwrap_or(context),
        max_bytes: options.max_bytes,
        created: now(),
        requests: AtomicU64::new(0),
    });
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the server")?;
    let served = runtime.block_on(serve(&options, server, cut));
    // Connections that are left are dropped, and with them the last senders of the model's thread.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served?;
    match thread.join() {
        Ok(worked) => worked.map(|()| ExitCode::SUCCESS),
        Err(_) => bail!("the model's thread has ended"),
    }
}

/// The error of a thread that has ended before it was ready.
fn ended(thread: std::thread::JoinHandle<Result<()>>) -> anyhow::Error {
    match thread.join() {
        Ok(Err(error)) => error,
        _ => anyhow::anyhow!("the model's thread has ended"),
    }
}

/// Listens until a signal; then what was begun may end.
async fn serve(options: &Serve, server: Arc<Server>, cut: Arc<AtomicBool>) -> Result<()> {
    let address = (options.host, options.port);
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen at {}:{}", options.host, options.port))?;
    let at = listener.local_addr().context("the server has no address")?;
    print(&format!("{} at http://{at}/v1", server.name))?;
    let (stop, stopped) = oneshot::channel::<()>();
    let served = axum::serve(listener, router(server)).with_graceful_shutdown(async { drop(stopped.await) });
    let mut served = tokio::spawn(served.into_future());
    signal().await?;
    let _ = stop.send(());
    if tokio::time::timeout(GRACE, &mut served).await.is_err() {
        cut.store(true, Ordering::Relaxed);
        let _ = tokio::time::timeout(Duration::from_secs(1), &mut served).await;
    }
    cut.store(true, Ordering::Relaxed);
    Ok(())
}

/// Ends at Ctrl-C and SIGTERM.
#[cfg(unix)]
async fn signal() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let refused = "cannot listen for signals";
    let mut interrupt = signal(SignalKind::interrupt()).context(refused)?;
    let mut terminate = signal(SignalKind::terminate()).context(refused)?;
    std::future::poll_fn(|context| match (interrupt.poll_recv(context), terminate.poll_recv(context)) {
        (Poll::Pending, Poll::Pending) => Poll::Pending,
        _ => Poll::Ready(()),
    })
    .await;
    Ok(())
}

/// Ends at Ctrl-C.
#[cfg(not(unix))]
async fn signal() -> Result<()> {
    tokio::signal::ctrl_c().await.context("cannot listen for signals")
}

fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/health", get(async || answer(StatusCode::OK, &json!({ "status": "ok" }))))
        .route("/metrics", get(metrics_page))
        .route("/v1/models", get(models))
        .route("/v1/models/{name}", get(model))
        .route("/v1/completions", post(async |state, request| counted(COMPLETIONS, completions, state, request).await))
        .route("/v1/chat/completions", post(async |state, request| counted(CHATS, chats, state, request).await))
        .route("/v1/embeddings", post(async |state, request| counted(EMBEDDINGS, embeddings, state, request).await))
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "there is no such path"))
        .method_not_allowed_fallback(async || ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "there is no such method"))
        .with_state(server)
}

const COMPLETIONS: &str = "/v1/completions";
const CHATS: &str = "/v1/chat/completions";
const EMBEDDINGS: &str = "/v1/embeddings";

/// The answer to a request with a body, which is counted.
async fn counted<F: Future<Output = Result<Response, ApiError>>>(
    path: &'static str,
    handler: impl FnOnce(Arc<Server>, Fields) -> F,
    State(server): State<Arc<Server>>,
    request: Request,
) -> Response {
    let fields = read(&server, request).await;
    let answered = match fields {
        Ok(fields) => handler(server.clone(), fields).await,
        Err(error) => Err(error),
    };
    server.metrics.count(path, answered.as_ref().map_or_else(ApiError::status, |response| response.status().as_u16()));
    answered.unwrap_or_else(IntoResponse::into_response)
}

/// The fields of a request.
async fn read(server: &Server, request: Request) -> Result<Fields, ApiError> {
    let body = tokio::time::timeout(BODY_TIME, to_bytes(request.into_body(), server.max_bytes)).await;
    let body = body.map_err(|_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time"))?;
    let body = body.map_err(|error| {
        let is_long = std::error::Error::source(&error).is_some_and(|source| source.to_string().contains("limit"));
        match is_long {
            true => {
                let message = format!("the body is longer than {} bytes", server.max_bytes);
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
            }
            false => ApiError::bad("the body was cut off"),
        }
    })?;
    let fields = Fields::read(&body)?;
    fields.check_supported()?;
    fields.check_model(&server.name)?;
    Ok(fields)
}

async fn metrics_page(State(server): State<Arc<Server>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], server.metrics.page()).into_response()
}

impl Server {
    fn about(&self) -> Value {
        json!({ "id": self.name, "object": "model", "created": self.created, "owned_by": "isograd" })
    }

    fn tokens(&self, text: &str, has_special: bool) -> Result<Vec<i64>, ApiError> {
        let tokens = if has_special { self.tokenizer.encode_special(text) } else { self.tokenizer.encode(text) };
        tokens.map_err(|error| ApiError::bad(error.to_string()))
    }

    /// The tokens of an input. Errors: 400 for tokens that there are not, none, and more than the context has.
    fn input(&self, input: Input) -> Result<Vec<i64>, ApiError> {
        let tokens = match input {
            Input::Text(text) => self.tokens(&text, true)?,
            Input::Tokens(tokens) => tokens,
        };
        let vocabulary = self.tokenizer.vocabulary();
        if let Some(token) = tokens.iter().find(|&&token| !(0..vocabulary as i64).contains(&token)) {
            return Err(ApiError::bad(format!("there is no token {token}, expected one in 0..{vocabulary}")));
        }
        match tokens.len() {
            0 => Err(ApiError::bad("the text has no tokens")),
            count if count > self.context => {
                let message = format!("the text has {count} tokens, and the context is {}", self.context);
                Err(ApiError::bad(message).code("context_length_exceeded"))
            }
            _ => Ok(tokens),
        }
    }

    /// Puts a job into the queue. Errors: 429 if it is full.
    fn send(&self, job: Job) -> Result<(), ApiError> {
        self.metrics.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = self.jobs.try_send(job);
        if sent.is_err() {
            self.metrics.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        sent.map_err(|error| match error {
            TrySendError::Full(_) => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too many requests wait for the model")
            }
            TrySendError::Disconnected(_) => ApiError::from(Failure::Stopping),
        })
    }

    /// Continues a prompt.
    async fn text(&self, kind: Kind, prompt: Vec<i64>, fields: &Fields) -> Result<Response, ApiError> {
        let room = self.context - prompt.len();
        if room == 0 {
            let message = format!("the prompt has {} tokens, and the context is {}", prompt.len(), self.context);
            return Err(ApiError::bad(message).code("context_length_exceeded"));
        }
        let default = if kind == Kind::Chat { room } else { 16 };
        let count = fields.max_tokens()?.unwrap_or(default).min(room).min(self.max_tokens);
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let (events, mut receiver) = mpsc::unbounded_channel();
        let prompted = prompt.len();
        self.send(Job::Text(TextJob {
            prompt,
            count,
            sampling: fields.sampling()?,
            logits: fields.logits()?,
            // Requests without a seed have different ones.
            seed: fields.seed()?.unwrap_or(self.created.wrapping_mul(1 << 20).wrapping_add(number)),
            stop_strings: fields.stops()?,
            ignores_stops: fields.flag("ignore_eos")?,
            continues: kind == Kind::Completion,
            until: Instant::now() + self.timeout,
            events,
        }))?;
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{}-{number}", self.created);
        let head = Head { kind, id, created: now(), model: self.name.clone() };
        if fields.flag("stream")? {
            let first = head.first().map(|body| data(&body)).into_iter().collect();
            let lines = Lines {
                head,
                prompted,
                has_usage: fields.includes_usage(),
                events: receiver,
                lines: first,
                has_ended: false,
            };
            let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
            return Ok((headers, Body::from_stream(lines)).into_response());
        }
        let mut text = String::new();
        loop {
            match receiver.recv().await {
                Some(Event::Text(part)) => text += &part,
                Some(Event::End { reason, tokens }) => {
                    return Ok(answer(StatusCode::OK, &head.whole(&text, reason, usage(prompted, tokens))));
                }
                Some(Event::Failed(failure)) => return Err(failure.into()),
                None => return Err(Failure::Stopping.into()),
            }
        }
    }
}

async fn models(State(server): State<Arc<Server>>) -> Response {
    answer(StatusCode::OK, &json!({ "object": "list", "data": [server.about()] }))
}

async fn model(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Response {
    match Fields(json!({ "model": name })).check_model(&server.name) {
        Ok(()) => answer(StatusCode::OK, &server.about()),
        Err(error) => error.into_response(),
    }
}

async fn completions(server: Arc<Server>, fields: Fields) -> Result<Response, ApiError> {
    let mut inputs = fields.inputs("prompt")?;
    match (inputs.pop(), inputs.is_empty()) {
        (Some(input), true) => server.text(Kind::Completion, server.input(input)?, &fields).await,
        _ => Err(ApiError::bad("prompt: this server takes one text in a request")),
    }
}

async fn chats(server: Arc<Server>, fields: Fields) -> Result<Response, ApiError> {
    let template = server.template.as_ref().ok_or_else(|| ApiError::bad("the model has no chat template"))?;
    let text = template.render(&fields.messages()?, true).map_err(|error| ApiError::bad(error.to_string()))?;
    // The template has the special tokens.
    let tokens = server.input(Input::Tokens(server.tokens(&text, false)?))?;
    server.text(Kind::Chat, tokens, &fields).await
}

async fn embeddings(server: Arc<Server>, fields: Fields) -> Result<Response, ApiError> {
    fields.check_dimensions()?;
    let is_base64 = fields.is_base64()?;
    let texts = fields.inputs("input")?;
    if texts.is_empty() || texts.len() > MOST_TEXTS {
        return Err(ApiError::bad(format!("input has {} texts, expected 1 to {MOST_TEXTS}", texts.len())));
    }
    let texts = texts.into_iter().map(|text| server.input(text)).collect::<Result<Vec<_>, _>>()?;
    let count: usize = texts.iter().map(Vec::len).sum();
    let (reply, vectors) = oneshot::channel();
    server.send(Job::Embed(EmbedJob { texts, until: Instant::now() + server.timeout, reply }))?;
    let vectors = vectors.await.unwrap_or(Err(Failure::Stopping))?;
    let written = |vector: &Vec<f32>| if is_base64 { json!(base64(vector)) } else { json!(vector) };
    let data: Vec<Value> = vectors
        .iter()
        .enumerate()
        .map(|(i, vector)| json!({ "object": "embedding", "index": i, "embedding": written(vector) }))
        .collect();
    let usage = json!({ "prompt_tokens": count, "total_tokens": count });
    Ok(answer(StatusCode::OK, &json!({ "object": "list", "data": data, "model": server.name, "usage": usage })))
}

/// The lines of an answer that comes in parts: server-sent events.
struct Lines {
    head: Head,
    prompted: usize,
    has_usage: bool,
    events: mpsc::UnboundedReceiver<Event>,
    lines: VecDeque<Bytes>,
    has_ended: bool,
}

/// An event with JSON.
fn data(body: &Value) -> Bytes {
    Bytes::from(format!("data: {body}\n\n"))
}

impl Lines {
    fn push(&mut self, event: Option<Event>) {
        let event = event.unwrap_or(Event::Failed(Failure::Stopping));
        self.has_ended = !matches!(event, Event::Text(_));
        match event {
            Event::Text(text) => self.lines.push_back(data(&self.head.part(&text))),
            Event::Failed(failure) => self.lines.push_back(data(&ApiError::from(failure).body())),
            Event::End { reason, tokens } => {
                self.lines.push_back(data(&self.head.last(reason)));
                if self.has_usage {
                    self.lines.push_back(data(&self.head.usage(usage(self.prompted, tokens))));
                }
                self.lines.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
            }
        }
    }
}

impl Stream for Lines {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Poll::Ready(Some(Ok(line)));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            match self.events.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(event) => self.push(event),
            }
        }
    }
}
