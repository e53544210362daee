//! The command line of `isograd train`: a subcommand for each dataset, of which a text is one.

use crate::text::{self, Text};
use crate::train::{self, TASKS};
use anyhow::Result;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::process::ExitCode;

/// The options of a dataset.
#[derive(Debug)]
pub enum Train {
    Text(Box<Text>),
    Samples(Box<train::Train>),
}

impl Args for Train {
    fn augment_args(command: Command) -> Command {
        command
            .subcommands(TASKS.iter().map(train::Train::command))
            .subcommand(Text::command())
            .subcommand_value_name("DATASET")
            .subcommand_help_heading("Datasets")
            .subcommand_required(true)
            .arg_required_else_help(true)
            .disable_help_subcommand(true)
            .after_help("Options of a dataset: isograd train DATASET --help")
    }

    fn augment_args_for_update(command: Command) -> Command {
        Train::augment_args(command)
    }
}

impl FromArgMatches for Train {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Train, clap::Error> {
        let (dataset, matches) = matches.subcommand().unwrap_or((text::NAME, matches));
        if dataset == text::NAME {
            return Text::from_arg_matches(matches).map(|text| Train::Text(Box::new(text)));
        }
        let train = train::Train::from_arg_matches(matches)?;
        Ok(Train::Samples(Box::new(train::Train { dataset: dataset.into(), ..train })))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Train::from_arg_matches(matches).map(|train| *self = train)
    }
}

/// Trains on a dataset.
pub fn run(train: Train) -> Result<ExitCode> {
    match train {
        Train::Text(options) => crate::run::run(&*options),
        Train::Samples(options) => crate::run::run(&*options),
    }
}

/// False for an option that neither this dataset nor its model, or the default one, has.
pub fn takes(dataset: &str, model: Option<&str>, option: &str) -> bool {
    if dataset == text::NAME { text::takes(model, option) } else { train::takes(dataset, model, option) }
}
