//! A fencing token is a signed 64-bit integer in the formats of other crates, and a number that is no token is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(all(feature = "serde", feature = "postgres-types", feature = "bson-2", feature = "bson-3"))]

use distlock_core::FencingToken;
use postgres_types::private::BytesMut;
use postgres_types::{FromSql, ToSql, Type};

const TOKEN: FencingToken = FencingToken::new(1_763_449_200_123);
const TOO_LARGE: FencingToken = FencingToken::new(u64::MAX);

#[test]
fn json_has_a_plain_integer() {
    assert_eq!(serde_json::to_string(&TOKEN).unwrap(), "1763449200123");
    assert_eq!(serde_json::from_str::<FencingToken>("1763449200123").unwrap(), TOKEN);
    assert!(serde_json::to_string(&TOO_LARGE).is_err());
    for bad in ["-1", "9223372036854775808", "1.5", "\"1\"", "null"] {
        assert!(serde_json::from_str::<FencingToken>(bad).is_err(), "{bad}");
    }
}

#[test]
fn postgres_has_a_bigint_and_nothing_narrower() {
    let mut bytes = BytesMut::new();
    TOKEN.to_sql_checked(&Type::INT8, &mut bytes).unwrap();
    assert_eq!(&bytes[..], 1_763_449_200_123_i64.to_be_bytes());
    assert_eq!(FencingToken::from_sql(&Type::INT8, &bytes).unwrap(), TOKEN);
    for narrower in [Type::INT4, Type::NUMERIC, Type::TEXT] {
        assert!(TOKEN.to_sql_checked(&narrower, &mut BytesMut::new()).is_err(), "{narrower}");
        assert!(!<FencingToken as FromSql<'_>>::accepts(&narrower), "{narrower}");
    }
    assert!(TOO_LARGE.to_sql_checked(&Type::INT8, &mut BytesMut::new()).is_err());
    assert!(FencingToken::from_sql(&Type::INT8, &(-1_i64).to_be_bytes()).is_err());
}

#[test]
fn both_versions_of_bson_have_a_64_bit_integer() {
    assert_eq!(bson2::doc! { "token": TOKEN }.get_i64("token").unwrap(), 1_763_449_200_123);
    assert_eq!(bson3::doc! { "token": TOKEN }.get_i64("token").unwrap(), 1_763_449_200_123);
    assert_eq!(bson2::Bson::from(FencingToken::new(1)), bson2::Bson::Int64(1));
    // By serde too: a struct of the application with a token in it.
    assert_eq!(bson2::to_bson(&TOKEN).unwrap(), bson2::Bson::Int64(1_763_449_200_123));
    assert_eq!(bson3::serialize_to_bson(&TOKEN).unwrap(), bson3::Bson::Int64(1_763_449_200_123));
    assert_eq!(bson2::from_bson::<FencingToken>(bson2::Bson::Int64(7)).unwrap(), FencingToken::new(7));
}
