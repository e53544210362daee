//! Tests that need the CPU alone: the tape, memory, threads, random numbers, decompositions, and the C text of pointwise functions.

mod c_text;
mod interop;
mod linalg;
mod memory;
mod random;
mod tape;
mod threads;
mod values;
