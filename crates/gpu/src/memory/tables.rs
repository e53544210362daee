//! Tables in device memory that launches read.

use crate::memory::pool::{Buffer, Pool};
use isograd_core::Result;
use parking_lot::Mutex;
use std::sync::Arc;

/// The number of tables that are kept. A training step uses the tables of the step before, as its memory comes from the pool.
const KEPT: usize = 16;

/// The tables of a device, the last used one last.
#[derive(Default)]
pub struct Tables(Mutex<Vec<Arc<Table>>>);

/// A table and its content.
pub struct Table {
    words: Vec<i64>,
    pub buffer: Buffer,
}

impl Tables {
    /// Forgets all tables.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// A table with this content, uploaded unless it is there.
    pub fn get(&self, pool: &Arc<Pool>, words: Vec<i64>) -> Result<Arc<Table>> {
        // Held while uploading, so that another thread that finds the table launches after the copy.
        let mut kept = self.0.lock();
        let table = match kept.iter().position(|t| t.words == words) {
            Some(i) => kept.remove(i),
            None => {
                let bytes = bytemuck::cast_slice(&words);
                // A recording reads the table at every replay and does not write it.
                let buffer = pool.take_aside(bytes.len())?;
                match pool.is_recording() {
                    true => pool.driver.upload_aside(buffer.address, bytes)?,
                    false => pool.driver.upload(buffer.address, bytes)?,
                }
                Arc::new(Table { words, buffer })
            }
        };
        pool.touch(table.buffer.address);
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(table.clone());
        Ok(table)
    }
}
