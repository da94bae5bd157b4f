//! A fencing token in other crates' formats, each behind a feature: always a signed 64-bit integer, as every store keeps it.

#[cfg(any(feature = "serde", feature = "postgres-types", feature = "sqlx"))]
mod conversion {
    use std::fmt;

    use crate::FencingToken;

    /// A number that is no token: negative, or too large for a signed 64-bit integer.
    #[derive(Debug)]
    pub(super) struct OutOfRange;

    impl fmt::Display for OutOfRange {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a fencing token is a signed 64-bit integer that is not negative")
        }
    }

    impl std::error::Error for OutOfRange {}

    pub(super) fn to_i64(token: FencingToken) -> Result<i64, OutOfRange> {
        i64::try_from(token.get()).map_err(|_| OutOfRange)
    }

    pub(super) fn from_i64(number: i64) -> Result<FencingToken, OutOfRange> {
        u64::try_from(number).map(FencingToken::new).map_err(|_| OutOfRange)
    }
}

#[cfg(feature = "serde")]
mod serde {
    use ::serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

    use super::conversion::{from_i64, to_i64};
    use crate::FencingToken;

    /// A plain integer.
    impl Serialize for FencingToken {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_i64(to_i64(*self).map_err(ser::Error::custom)?)
        }
    }

    impl<'de> Deserialize<'de> for FencingToken {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            from_i64(i64::deserialize(deserializer)?).map_err(de::Error::custom)
        }
    }
}

#[cfg(feature = "postgres-types")]
mod postgres_types {
    use std::error::Error;

    use ::postgres_types::private::BytesMut;
    use ::postgres_types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

    use super::conversion::{from_i64, to_i64};
    use crate::FencingToken;

    /// `BIGINT`.
    impl ToSql for FencingToken {
        accepts!(INT8);
        to_sql_checked!();

        fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
            to_i64(*self)?.to_sql(ty, out)
        }
    }

    impl<'a> FromSql<'a> for FencingToken {
        accepts!(INT8);

        fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
            Ok(from_i64(i64::from_sql(ty, raw)?)?)
        }
    }
}

#[cfg(feature = "sqlx")]
mod sqlx {
    use ::sqlx::encode::IsNull;
    use ::sqlx::error::BoxDynError;
    use ::sqlx::{Database, Decode, Encode, Type};

    use super::conversion::{from_i64, to_i64};
    use crate::FencingToken;

    /// `BIGINT`, on every database whose driver knows it.
    impl<DB: Database> Type<DB> for FencingToken
    where
        i64: Type<DB>,
    {
        fn type_info() -> DB::TypeInfo {
            <i64 as Type<DB>>::type_info()
        }

        fn compatible(info: &DB::TypeInfo) -> bool {
            <i64 as Type<DB>>::compatible(info)
        }
    }

    impl<'q, DB: Database> Encode<'q, DB> for FencingToken
    where
        i64: Encode<'q, DB>,
    {
        fn encode_by_ref(&self, buffer: &mut DB::ArgumentBuffer<'q>) -> Result<IsNull, BoxDynError> {
            to_i64(*self)?.encode(buffer)
        }
    }

    impl<'r, DB: Database> Decode<'r, DB> for FencingToken
    where
        i64: Decode<'r, DB>,
    {
        fn decode(value: DB::ValueRef<'r>) -> Result<Self, BoxDynError> {
            Ok(from_i64(i64::decode(value)?)?)
        }
    }
}

/// `Bson::Int64`. The largest 64-bit integer stands for a number that does not fit; no store grants one.
#[cfg(feature = "bson-2")]
impl From<crate::FencingToken> for bson2::Bson {
    fn from(token: crate::FencingToken) -> Self {
        bson2::Bson::Int64(i64::try_from(token.get()).unwrap_or(i64::MAX))
    }
}

/// `Bson::Int64`. The largest 64-bit integer stands for a number that does not fit; no store grants one.
#[cfg(feature = "bson-3")]
impl From<crate::FencingToken> for bson3::Bson {
    fn from(token: crate::FencingToken) -> Self {
        bson3::Bson::Int64(i64::try_from(token.get()).unwrap_or(i64::MAX))
    }
}
