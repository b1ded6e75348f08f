//! `timestamptz` from and to `SystemTime`, without a date library: microseconds since the year 2000. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use inbox_core::BoxError;
use sqlx::{
    Decode, Encode, Postgres, Type,
    encode::IsNull,
    postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef, types::Oid},
};

/// From 1970 to 2000, in microseconds.
const EPOCHS_APART: i64 = 946_684_800_000_000;
/// The year 200,000: PostgreSQL ends at 294,276.
const LAST: i64 = 6_249_000_000_000_000_000;

/// A `timestamptz`. Times before 1970 and after the year 200,000 become those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PgTime(i64);

impl From<SystemTime> for PgTime {
    fn from(time: SystemTime) -> Self {
        let micros = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        Self(i64::try_from(micros).map_or(LAST, |micros| micros.min(LAST + EPOCHS_APART) - EPOCHS_APART))
    }
}

impl From<PgTime> for SystemTime {
    fn from(time: PgTime) -> Self {
        let micros = time.0.saturating_add(EPOCHS_APART);
        UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or_default())
    }
}

impl Type<Postgres> for PgTime {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl PgHasArrayType for PgTime {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1185))
    }
}

impl Encode<'_, Postgres> for PgTime {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxError> {
        Encode::<Postgres>::encode(self.0, buffer)
    }
}

impl Decode<'_, Postgres> for PgTime {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxError> {
        <i64 as Decode<'_, Postgres>>::decode(value).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_and_absurd_ones_stay_in_range() {
        let time = UNIX_EPOCH + Duration::from_micros(1_767_225_600_123_456);
        assert_eq!(SystemTime::from(PgTime::from(time)), time);
        assert_eq!(PgTime::from(UNIX_EPOCH - Duration::from_secs(1)), PgTime(-EPOCHS_APART));
        assert_eq!(PgTime::from(UNIX_EPOCH + Duration::from_secs(u64::from(u32::MAX) * 1_000_000)), PgTime(LAST));
    }
}
