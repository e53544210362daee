//! Files, datasets, batches and the loader.

mod collate;
mod columns;
mod formats;
mod images;
mod loader;
mod meshes;
mod mixed;
mod stream;
mod vocabularies;
