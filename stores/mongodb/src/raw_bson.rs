//! BSON written straight into the bytes of a command. A command with lists of a thousand texts is built in a fraction of the
//! time that a tree of [`Document`](mongodb::bson::Document)s takes, which allocates each text and serialises it afterwards.
//!
//! It writes the format itself, because the builders of raw documents differ between bson 2 and bson 3.

use std::ops::Range;

use distlock_core::Result;
use mongodb::bson::{Document, RawDocumentBuf};

use crate::error;

const TEXT: u8 = 0x02;
const DOCUMENT: u8 = 0x03;
const ARRAY: u8 = 0x04;
const BOOLEAN: u8 = 0x08;
const INT32: u8 = 0x10;
const INT64: u8 = 0x12;

/// The elements of a document that is being written. Keys are ours: without a NUL, and each once.
#[derive(Debug)]
pub(crate) struct RawElements {
    bytes: Vec<u8>,
}

/// An array that was written, to be repeated.
#[derive(Clone, Debug)]
pub(crate) struct WrittenArray(Range<usize>);

impl RawElements {
    /// A small document that exists as a tree.
    pub(crate) fn of_tree(document: &Document) -> Result<RawDocumentBuf> {
        RawDocumentBuf::try_from(document).map_err(|_| error::unwritable("not BSON"))
    }

    /// A whole document of about this many bytes.
    pub(crate) fn document(size: usize, write: impl FnOnce(&mut Self)) -> Result<RawDocumentBuf> {
        let mut elements = RawElements { bytes: Vec::with_capacity(size) };
        elements.enclosed(write);
        let too_long = |_| error::unwritable("longer than a document may be");
        RawDocumentBuf::from_bytes(elements.bytes).map_err(too_long)
    }

    /// Writes the length, the elements and the end of a document.
    fn enclosed(&mut self, write: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        write(self);
        self.bytes.push(0);
        let length = length(self.bytes.len() - start);
        self.bytes[start..start + 4].copy_from_slice(&length);
    }

    fn key(&mut self, kind: u8, key: &str) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(key.as_bytes());
        self.bytes.push(0);
    }

    /// The key of an element of an array: its index.
    fn index(&mut self, kind: u8, index: usize) {
        self.bytes.push(kind);
        let mut digits = [0; 20];
        let (mut first, mut rest) = (digits.len(), index);
        loop {
            first -= 1;
            digits[first] = b"0123456789"[rest % 10];
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.bytes.extend_from_slice(&digits[first..]);
        self.bytes.push(0);
    }

    fn text_value(&mut self, value: &str) {
        self.bytes.extend_from_slice(&length(value.len() + 1));
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.key(TEXT, key);
        self.text_value(value);
    }

    pub(crate) fn boolean(&mut self, key: &str, value: bool) {
        self.key(BOOLEAN, key);
        self.bytes.push(value.into());
    }

    pub(crate) fn int32(&mut self, key: &str, value: i32) {
        self.key(INT32, key);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn nested(&mut self, key: &str, write: impl FnOnce(&mut Self)) {
        self.key(DOCUMENT, key);
        self.enclosed(write);
    }

    /// An array of few elements. `write` writes them with their indices as keys.
    pub(crate) fn array(&mut self, key: &str, write: impl FnOnce(&mut Self)) {
        self.key(ARRAY, key);
        self.enclosed(write);
    }

    /// A document that exists already.
    pub(crate) fn embedded(&mut self, key: &str, document: &RawDocumentBuf) {
        self.key(DOCUMENT, key);
        self.bytes.extend_from_slice(document.as_bytes());
    }

    /// An array of documents, of which `write` writes the elements of each.
    pub(crate) fn documents<T>(
        &mut self,
        key: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.list(key, items, |elements, index, item| {
            elements.index(DOCUMENT, index);
            elements.enclosed(|elements| write(elements, item));
        });
    }

    pub(crate) fn texts<'a>(&mut self, key: &str, items: impl IntoIterator<Item = &'a str>) -> WrittenArray {
        self.list(key, items, |elements, index, text| {
            elements.index(TEXT, index);
            elements.text_value(text);
        })
    }

    pub(crate) fn int64s(&mut self, key: &str, items: impl IntoIterator<Item = i64>) {
        self.list(key, items, |elements, index, number| {
            elements.index(INT64, index);
            elements.bytes.extend_from_slice(&number.to_le_bytes());
        });
    }

    /// The same array under another key.
    pub(crate) fn repeated(&mut self, key: &str, array: WrittenArray) {
        self.key(ARRAY, key);
        self.bytes.extend_from_within(array.0);
    }

    fn list<T>(
        &mut self,
        key: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, usize, T),
    ) -> WrittenArray {
        self.key(ARRAY, key);
        let start = self.bytes.len();
        self.enclosed(|elements| {
            for (index, item) in items.into_iter().enumerate() {
                write(elements, index, item);
            }
        });
        WrittenArray(start..self.bytes.len())
    }
}

/// A length as the format has it. Of one that does not fit the document is refused: its own length does not fit either.
fn length(bytes: usize) -> [u8; 4] {
    i32::try_from(bytes).unwrap_or(i32::MAX).to_le_bytes()
}
