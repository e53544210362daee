//! `isograd chat`: a conversation with a language model.

use super::generate::Draws;
use super::models::{decoder, row};
use super::open::Source;
use crate::run::device;
use crate::{print, put, tell};
use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::data::chat::{ChatTemplate, Message};
use isograd::data::{StopStrings, TextStream, Tokenizer};
use isograd::models::{Decoder, LanguageModel};
use isograd::train::{INTERRUPTED, interrupts};
use isograd::{Rng, no_grad};
use std::io::{self, BufRead, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// How often the command looks for Ctrl-C while it waits for a line.
const WAIT: Duration = Duration::from_millis(50);

/// The options of `isograd chat`.
#[derive(Args, Debug)]
pub struct Chat {
    #[command(flatten)]
    source: Source,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The number of tokens of an answer, at most
    #[arg(long, default_value_t = 1024)]
    tokens: usize,
    #[command(flatten)]
    draws: Draws,
}

/// Answers each line of stdin, until it ends.
pub fn run(options: Chat) -> Result<ExitCode> {
    let Chat { source, system, tokens, draws } = options;
    let device = device(source.device.as_deref())?;
    let (drawing, tokenizer) = (draws.drawing()?, source.tokenizer()?);
    let template = source.template(&*tokenizer)?.with_context(|| {
        format!("{} has no chat template; `isograd generate` continues texts", source.path.display())
    })?;
    let (stops, model) = (source.stop_tokens()?, source.model(tokenizer.vocabulary(), &device)?);
    let model = model.cached().context("the model is recurrent; `isograd generate` continues texts with it")?;
    let mut talk = Talk {
        model,
        tokenizer: &*tokenizer,
        template,
        decoder: decoder(model, &drawing, Rng::new(draws.seed)),
        read: Vec::new(),
        messages: system.map(|text| Message::new("system", text)).into_iter().collect(),
        stops,
        stop_strings: draws.stops,
        count: tokens,
        interrupted: interrupts()?,
    };
    let lines = lines();
    let is_terminal = io::stdin().is_terminal();
    loop {
        if is_terminal {
            put("> ")?;
        }
        let Some(line) = next_line(&lines, &talk.interrupted)? else { break };
        if line.trim().is_empty() {
            continue;
        }
        talk.answer(&line)?;
        print("")?;
        if talk.interrupted.load(Ordering::Relaxed) {
            break;
        }
    }
    if is_terminal {
        print("")?;
    }
    Ok(if talk.interrupted.load(Ordering::Relaxed) { INTERRUPTED.into() } else { ExitCode::SUCCESS })
}

/// The lines of stdin. A thread reads them, so that Ctrl-C is seen at once.
fn lines() -> Receiver<io::Result<String>> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || io::stdin().lock().lines().try_for_each(|line| sender.send(line)));
    lines
}

/// The next line; none at the end and at Ctrl-C.
fn next_line(lines: &Receiver<io::Result<String>>, interrupted: &AtomicBool) -> Result<Option<String>> {
    while !interrupted.load(Ordering::Relaxed) {
        match lines.recv_timeout(WAIT) {
            Ok(line) => return Ok(Some(line.context("cannot read stdin")?)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    Ok(None)
}

/// A conversation.
struct Talk<'a> {
    model: &'a dyn LanguageModel,
    tokenizer: &'a dyn Tokenizer,
    template: ChatTemplate,
    decoder: Decoder<'a>,
    /// The tokens whose keys and values the decoder has.
    read: Vec<i64>,
    messages: Vec<Message>,
    stops: Vec<i64>,
    stop_strings: Vec<String>,
    count: usize,
    interrupted: Arc<AtomicBool>,
}

impl Talk<'_> {
    /// Prints the answer to a line as it is drawn.
    fn answer(&mut self, line: &str) -> Result<()> {
        self.messages.push(Message::new("user", line));
        let tokens = self.prompt()?;
        // What the conversation has in common with the tokens that were read need not be read again.
        let same = self.read.iter().zip(&tokens).take_while(|(a, b)| a == b).count().min(tokens.len() - 1);
        self.decoder.truncate(same)?;
        let mut stream = TextStream::new(self.tokenizer);
        let mut stops = StopStrings::new(&self.stop_strings);
        let (mut answer, mut drawn) = (String::new(), Vec::new());
        let count = self.count.min(self.model.context() - tokens.len());
        while drawn.len() < count && !self.interrupted.load(Ordering::Relaxed) {
            let token = no_grad(|| match drawn.is_empty() {
                true => self.decoder.prompt(&row(&tokens[same..], self.model)?, None)?.item::<i64>(),
                false => self.decoder.next()?.item(),
            })?;
            drawn.push(token);
            if self.stops.contains(&token) {
                break;
            }
            let part = stops.push(&stream.push(token)?);
            put(&part)?;
            answer += &part;
            if stops.has_ended() {
                break;
            }
        }
        let rest = stops.push(&stream.finish()?) + &stops.finish();
        put(&rest)?;
        self.messages.push(Message::new("assistant", answer + &rest));
        self.read = tokens;
        self.read.extend(drawn);
        self.read.truncate(self.decoder.lengths().first().copied().unwrap_or(0));
        Ok(())
    }

    /// The tokens of the conversation. The oldest messages behind that of the system are left out while it leaves no room for an answer.
    fn prompt(&mut self) -> Result<Vec<i64>> {
        loop {
            let tokens = self.tokenizer.encode(&self.template.render(&self.messages, true)?)?;
            if tokens.is_empty() {
                bail!("the template of the model makes no text of the conversation");
            }
            if tokens.len() < self.model.context() {
                return Ok(tokens);
            }
            let first = usize::from(self.messages[0].role == "system");
            if self.messages.len() - first < 3 {
                let (count, context) = (tokens.len(), self.model.context());
                bail!("the message has {count} tokens with what is around it, and the context is {context}");
            }
            tell("the conversation is longer than the context: its oldest messages are left out");
            self.messages.drain(first..first + 2);
        }
    }
}
