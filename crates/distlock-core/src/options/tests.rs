use super::*;

const MS: Duration = Duration::from_millis(1);

#[test]
fn the_defaults_are_those_of_the_seeds() {
    let options = Options::new();
    assert_eq!(options.get_expiry(), Duration::from_secs(30));
    assert_eq!(options.get_extension_cadence(), Duration::from_secs(10));
    assert_eq!(options.get_busy_wait_sleep(), (10 * MS, 800 * MS));
    assert!(options.extends() && options.adaptive_backoff.is_none());
}

#[test]
fn options_over_others_change_only_what_they_name() {
    let base = Options::new()
        .expiry(9000 * MS)
        .unwrap()
        .extension_cadence(1000 * MS)
        .unwrap()
        .auto_extend(false)
        .busy_wait_sleep(MS, 2 * MS)
        .unwrap()
        .adaptive_backoff(true)
        .hold_at_least(3 * MS)
        .unwrap()
        .max_hold(4000 * MS)
        .unwrap()
        .request_timeout(500 * MS)
        .unwrap()
        .notice_break(true);
    assert_eq!(Options::new().over(&base), base);
    assert_eq!(base.clone().over(&Options::new().expiry(MIN_EXPIRY).unwrap()), base);
    let over = Options::new().expiry(8000 * MS).unwrap().auto_extend(true).unlimited_hold().over(&base);
    assert_eq!((over.get_expiry(), over.extends(), over.get_max_hold()), (8000 * MS, true, None));
    let rest = over.expiry(9000 * MS).unwrap().auto_extend(false).max_hold(4000 * MS).unwrap();
    assert_eq!(rest, base);
}

#[test]
fn bad_values_are_refused_when_they_are_set() {
    let o = Options::new;
    for bad in [
        o().expiry(99 * MS),
        o().expiry(Duration::MAX),
        o().extension_cadence(Duration::ZERO),
        o().extension_cadence(MIN_CADENCE - Duration::from_nanos(1)),
        o().busy_wait_sleep(Duration::ZERO, MS),
        o().busy_wait_sleep(2 * MS, MS),
        o().busy_wait_sleep(MS, Duration::from_secs(61)),
        o().hold_at_least(Duration::MAX),
        o().max_hold(Duration::ZERO),
        o().max_hold(Duration::MAX),
        o().request_timeout(Duration::ZERO),
    ] {
        let error = bad.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.advice().is_some(), "{error}");
    }
    assert!(o().expiry(MIN_EXPIRY).is_ok());
}

#[test]
fn values_that_do_not_fit_each_other_are_refused_in_whatever_order_they_were_set() {
    let (expiry, cadence) = (10_000 * MS, 7_501 * MS);
    let first = Options::new().expiry(expiry).unwrap().extension_cadence(cadence).unwrap();
    let last = Options::new().extension_cadence(cadence).unwrap().expiry(expiry).unwrap();
    assert_eq!(first, last);
    let error = first.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.advice().is_some(), "{error}");
    let replaced = first.extension_cadence(7_500 * MS).unwrap();
    assert!(replaced.check().is_ok());
    assert!(replaced.expiry(9_999 * MS).unwrap().check().is_err());
}

#[test]
fn a_cadence_may_be_set_before_the_expiry_that_it_fits() {
    let early = Options::new().extension_cadence(40_000 * MS).unwrap();
    assert_eq!(early.check().unwrap_err().kind(), ErrorKind::InvalidInput);
    let error = early.check().unwrap_err().to_string();
    assert!(error.contains("40s") && error.contains("30s") && error.contains("at most 22.5s"), "{error}");
    assert!(early.clone().auto_extend(false).check().is_ok(), "a plain lease is not renewed");
    let fits = early.expiry(120_000 * MS).unwrap();
    assert!(fits.check().is_ok());
    assert_eq!(fits.get_extension_cadence(), 40_000 * MS);
}

#[test]
fn adaptive_backoff_grows_by_half_and_stays_between_min_and_max() {
    let options = Options::new().adaptive_backoff(true);
    for n in 0..200_u32 {
        let sleep = options.sleep_after(n, Some(MS));
        assert!(sleep >= 10 * MS && sleep <= 800 * MS, "attempt {n}: {sleep:?}");
        if n < 10 {
            let ideal = 10.0 * 1.5_f64.powi(n.cast_signed());
            let got = sleep.as_secs_f64() * 1000.0;
            assert!(got >= (0.79 * ideal).max(9.9) && got <= 1.21 * ideal, "attempt {n}: {got} for {ideal}");
        }
    }
}

#[test]
fn the_random_sleep_stays_in_its_range() {
    let options = Options::new().busy_wait_sleep(5 * MS, 7 * MS).unwrap();
    assert!((0..200).all(|n| (5 * MS..=7 * MS).contains(&options.sleep_after(n, None))));
    for (proposed, expected) in [(MS, 5 * MS), (6 * MS, 6 * MS), (60 * MS, 7 * MS)] {
        assert_eq!(options.sleep_after(3, Some(proposed)), expected);
    }
}
