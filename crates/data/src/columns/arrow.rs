//! Arrow files. Source: "Arrow columnar format", section "IPC file format".

use super::Opened;
use crate::file::guarded;
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, root_as_footer, root_as_message};
use isograd_files::{Checked, Mapped, Packing, most_rows};
use std::sync::Arc;

/// Bytes of the length of a buffer before the packed content.
const LENGTH: usize = 8;
/// The length of a buffer that is not packed.
const NOT_PACKED: i64 = -1;

pub(super) fn open(file: Mapped) -> Checked<Opened> {
    let (rest, end) = file.split_last_chunk::<10>().ok_or("it is cut off")?;
    let length = read_footer_length(*end).map_err(|e| e.to_string())?;
    let start = rest.len().checked_sub(length).ok_or("its description is longer than the file")?;
    let footer = root_as_footer(&rest[start..]).map_err(|e| e.to_string())?;
    let schema = footer.schema().ok_or("it has no schema")?;
    let schema = Arc::new(guarded(|| try_fb_to_schema(schema))?);
    let mut decoder = FileDecoder::new(schema.clone(), footer.version());
    for block in footer.dictionaries().iter().flatten() {
        let buffer = checked(&file, block)?;
        guarded(|| decoder.read_dictionary(block, &buffer))?;
    }
    let blocks: Vec<Block> = footer.recordBatches().iter().flatten().copied().collect();
    let part = move |block: Block| -> Checked<Option<RecordBatch>> {
        let buffer = checked(&file, &block)?;
        guarded(|| decoder.read_record_batch(&block, &buffer))
    };
    Ok(Opened { schema, parts: Box::new(blocks.into_iter().filter_map(move |block| part(block).transpose())) })
}

/// The bytes of a block. Errors: lengths that the file cannot hold; the reader makes room for what it is told.
fn checked(file: &[u8], block: &Block) -> Checked<Buffer> {
    let number = |v: i64| usize::try_from(v).map_err(|_| "a block has no place");
    let (at, head, body) =
        (number(block.offset())?, number(block.metaDataLength().into())?, number(block.bodyLength())?);
    let end = head.checked_add(body).and_then(|length| at.checked_add(length));
    let bytes = end.and_then(|end| file.get(at..end)).ok_or("a block is outside of it")?;
    let (head, body) = bytes.split_at_checked(head).ok_or("a block is outside of it")?;
    // A mark of four bytes, which old files lack, and the length.
    let skipped = if head.starts_with(&[0xff; 4]) { 8 } else { 4 };
    let message = root_as_message(head.get(skipped..).unwrap_or_default()).map_err(|e| e.to_string())?;
    let dictionary = message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data());
    let batch = message.header_as_record_batch().or(dictionary).ok_or("a block has no rows")?;
    if !(0..=most_rows(file.len()) as i64).contains(&batch.length()) {
        return Err("it announces more rows than it can hold".into());
    }
    for buffer in batch.buffers().iter().flatten() {
        let (at, length) = (number(buffer.offset())?, number(buffer.length())?);
        let content = at.checked_add(length).and_then(|end| body.get(at..end)).ok_or("a buffer is outside of it")?;
        if batch.compression().is_some() && !content.is_empty() {
            let (said, packed) = content.split_first_chunk::<LENGTH>().ok_or("a buffer is cut off")?;
            let said = i64::from_le_bytes(*said);
            if said != NOT_PACKED && !(0..=Packing::Lz4.most_unpacked(packed.len()) as i64).contains(&said) {
                return Err(format!("a buffer of {length} bytes announces {said}"));
            }
        }
    }
    Ok(Buffer::from(bytes))
}
