//! What is tested on every device beside the rows of the registry.

// Each example has what it prints with.
#![allow(clippy::duplicate_mod)]

mod attention;
mod autocast;
mod cases;
mod channels_last;
mod edges;
mod everywhere;
mod examples;
mod extremes;
mod foreign;
mod in_place;
mod kernels;
mod limits;
mod passes;
mod printing;
mod profile;
mod programs;
mod quantized;
mod recurrent;
mod scaling;
mod training;
mod transformers;
mod windows;

use isograd_tests::harness;

fn main() {
    if std::env::var_os(limits::LITTLE_MEMORY).is_some() {
        return limits::within_little_memory();
    }
    harness::main(&[
        ("kernels", kernels::trials),
        ("extremes", extremes::trials),
        ("autocast", autocast::trials),
        ("attention", attention::trials),
        ("cases", cases::trials),
        ("channels_last", channels_last::trials),
        ("edges", edges::trials),
        ("everywhere", everywhere::trials),
        ("examples", examples::trials),
        ("foreign", foreign::trials),
        ("in_place", in_place::trials),
        ("limits", limits::trials),
        ("passes", passes::trials),
        ("printing", printing::trials),
        ("profile", profile::trials),
        ("programs", programs::trials),
        ("quantized", quantized::trials),
        ("recurrent", recurrent::trials),
        ("scaling", scaling::trials),
        ("training", training::trials),
        ("transformers", transformers::trials),
        ("windows", windows::trials),
    ]);
}
