//! Columns of rows.

use distlock_core::Result;
use distlock_core::store::support::errors;
use tiberius::{ColumnData, Row};

fn column<'a>(row: Option<&'a Row>, name: &str) -> Result<&'a ColumnData<'static>> {
    let row = row.ok_or_else(errors::too_few_answers)?;
    row.get_column_data(name).map_err(|_| errors::unexpected_reply(format!("without {name}")))
}

/// A number of whatever width; `None` for NULL.
pub(crate) fn optional(row: Option<&Row>, name: &str) -> Result<Option<i64>> {
    Ok(match column(row, name)? {
        ColumnData::U8(number) => number.map(i64::from),
        ColumnData::I16(number) => number.map(i64::from),
        ColumnData::I32(number) => number.map(i64::from),
        ColumnData::I64(number) => *number,
        other => return Err(errors::unexpected_reply(other)),
    })
}

/// A number that is there.
pub(crate) fn number<T: TryFrom<i64>>(row: Option<&Row>, name: &str) -> Result<T> {
    optional(row, name)?
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| errors::unexpected_reply(format!("{name} is no number")))
}

pub(crate) fn text(row: Option<&Row>, name: &str) -> Result<String> {
    match column(row, name)? {
        ColumnData::String(Some(text)) => Ok(text.to_string()),
        other => Err(errors::unexpected_reply(other)),
    }
}

pub(crate) fn bytes(row: Option<&Row>, name: &str) -> Result<Vec<u8>> {
    match column(row, name)? {
        ColumnData::Binary(Some(bytes)) => Ok(bytes.to_vec()),
        other => Err(errors::unexpected_reply(other)),
    }
}
