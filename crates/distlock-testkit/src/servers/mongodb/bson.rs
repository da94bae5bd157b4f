//! The subset of BSON that set-up and status commands use.

use std::io;

/// A value of a kind that set-up commands and their replies use; others are read as [`Value::Other`].
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A double.
    Double(f64),
    /// A string.
    Text(String),
    /// A document.
    Document(Document),
    /// An array.
    Array(Vec<Value>),
    /// An object id.
    ObjectId([u8; 12]),
    /// A boolean.
    Bool(bool),
    /// Milliseconds since 1970.
    DateTime(i64),
    /// Null.
    Null,
    /// A 32-bit integer.
    Int32(i32),
    /// A 64-bit integer.
    Int64(i64),
    /// Anything else, by its type byte; cannot be sent.
    Other(u8),
}

/// A document: names and values, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Document(pub Vec<(String, Value)>);

impl Document {
    /// A document that begins with one value. For a command that is its name: `Document::new("ping", 1)`.
    #[must_use]
    pub fn new(name: &str, value: impl Into<Value>) -> Self {
        Self::default().with(name, value)
    }

    /// The document with one more value.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.push((name.to_owned(), value.into()));
        self
    }

    /// The value under a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The string under a name; empty if there is none.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        if let Some(Value::Text(text)) = self.get(name) { text } else { "" }
    }

    /// Whether the value under a name is true, or a number other than 0.
    #[must_use]
    pub fn is_true(&self, name: &str) -> bool {
        match self.get(name) {
            Some(Value::Bool(truth)) => *truth,
            Some(Value::Double(number)) => *number != 0.0,
            Some(Value::Int32(number)) => *number != 0,
            Some(Value::Int64(number)) => *number != 0,
            _ => false,
        }
    }

    /// The document's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for (name, value) in &self.0 {
            write_element(&mut body, name, value);
        }
        framed(&body)
    }

    /// Reads a document from the front of `bytes`.
    ///
    /// # Errors
    /// If they are not a document.
    pub fn from_bytes(mut bytes: &[u8]) -> io::Result<Self> {
        read_document(&mut bytes)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Int32(number)
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Bool(truth)
    }
}

impl From<Document> for Value {
    fn from(document: Document) -> Self {
        Self::Document(document)
    }
}

impl From<Vec<Document>> for Value {
    fn from(documents: Vec<Document>) -> Self {
        Self::Array(documents.into_iter().map(Self::Document).collect())
    }
}

fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 5).expect("a set-up document is small");
    [&length.to_le_bytes(), body, &[0]].concat()
}

fn write_element(out: &mut Vec<u8>, name: &str, value: &Value) {
    let (kind, bytes) = match value {
        Value::Double(number) => (0x01, number.to_le_bytes().to_vec()),
        Value::Text(text) => {
            let length = u32::try_from(text.len() + 1).expect("a set-up string is small");
            (0x02, [&length.to_le_bytes(), text.as_bytes(), &[0]].concat())
        }
        Value::Document(document) => (0x03, document.to_bytes()),
        Value::Array(values) => {
            let mut body = Vec::new();
            for (i, value) in values.iter().enumerate() {
                write_element(&mut body, &i.to_string(), value);
            }
            (0x04, framed(&body))
        }
        Value::ObjectId(id) => (0x07, id.to_vec()),
        Value::Bool(truth) => (0x08, vec![u8::from(*truth)]),
        Value::DateTime(millis) => (0x09, millis.to_le_bytes().to_vec()),
        Value::Null => (0x0a, Vec::new()),
        Value::Int32(number) => (0x10, number.to_le_bytes().to_vec()),
        Value::Int64(number) => (0x12, number.to_le_bytes().to_vec()),
        Value::Other(kind) => panic!("a value of type {kind:#x} cannot be sent"),
    };
    out.push(kind);
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    out.extend_from_slice(&bytes);
}

fn read_document(bytes: &mut &[u8]) -> io::Result<Document> {
    let length = read_length(bytes)?;
    let mut body = take(bytes, length.checked_sub(4).ok_or_else(broken)?)?;
    let mut elements = Vec::new();
    loop {
        let kind = array::<1>(&mut body)?[0];
        if kind == 0 {
            return Ok(Document(elements));
        }
        let end = body.iter().position(|byte| *byte == 0).ok_or_else(broken)?;
        let name = String::from_utf8_lossy(take(&mut body, end)?).into_owned();
        take(&mut body, 1)?;
        elements.push((name, read_value(kind, &mut body)?));
    }
}

fn read_value(kind: u8, body: &mut &[u8]) -> io::Result<Value> {
    Ok(match kind {
        0x01 => Value::Double(f64::from_le_bytes(array(body)?)),
        0x02 => {
            let length = read_length(body)?;
            let text = take(body, length)?;
            Value::Text(String::from_utf8_lossy(&text[..length.saturating_sub(1)]).into_owned())
        }
        0x03 => Value::Document(read_document(body)?),
        0x04 => Value::Array(read_document(body)?.0.into_iter().map(|(_, value)| value).collect()),
        0x07 => Value::ObjectId(array(body)?),
        0x08 => Value::Bool(array::<1>(body)?[0] != 0),
        0x09 => Value::DateTime(i64::from_le_bytes(array(body)?)),
        0x0a => Value::Null,
        0x10 => Value::Int32(i32::from_le_bytes(array(body)?)),
        0x12 => Value::Int64(i64::from_le_bytes(array(body)?)),
        0x05 => {
            let length = read_length(body)?;
            take(body, length + 1)?;
            Value::Other(kind)
        }
        0x11 => {
            take(body, 8)?;
            Value::Other(kind)
        }
        other => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("BSON type {other:#x} is not known here"),
            ));
        }
    })
}

fn read_length(bytes: &mut &[u8]) -> io::Result<usize> {
    usize::try_from(i32::from_le_bytes(array(bytes)?)).map_err(|_| broken())
}

fn array<const N: usize>(bytes: &mut &[u8]) -> io::Result<[u8; N]> {
    take(bytes, N)?.try_into().map_err(|_| broken())
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> io::Result<&'a [u8]> {
    let (front, rest) = bytes.split_at_checked(count).ok_or_else(broken)?;
    *bytes = rest;
    Ok(front)
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a BSON document")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let document = Document::new("hello", 1)
            .with("name", "ä")
            .with("flag", true)
            .with("sub", Document::new("x", "y"))
            .with("list", vec![Document::new("a", 1), Document::default()])
            .with("id", Value::ObjectId([7; 12]))
            .with("at", Value::DateTime(-5))
            .with("none", Value::Null)
            .with("big", Value::Int64(1 << 40))
            .with("half", Value::Double(0.5));
        assert_eq!(Document::from_bytes(&document.to_bytes()).unwrap(), document);
    }

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        // The first example of bsonspec.org.
        let bytes = b"\x16\x00\x00\x00\x02hello\x00\x06\x00\x00\x00world\x00\x00";
        assert_eq!(Document::new("hello", "world").to_bytes(), bytes);
    }

    #[test]
    fn truncated_bytes_are_an_error_and_no_panic() {
        let bytes = Document::new("hello", "world").with("sub", Document::new("x", 1)).to_bytes();
        for length in 0..bytes.len() {
            assert!(Document::from_bytes(&bytes[..length]).is_err());
        }
    }
}
