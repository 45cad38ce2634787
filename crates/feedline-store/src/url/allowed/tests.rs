//! Tables of URLs and addresses: what is allowed, and what would like to be.

use super::*;

fn list(urls: &[&str]) -> Allowed {
    let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
    Allowed::new(&urls).unwrap()
}

/// Whether a text is a URL that is allowed.
fn passes(allowed: &Allowed, text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| allowed.permits(&url))
}

#[test]
fn more_than_a_hundred_urls_that_would_like_to_be_allowed() {
    let allowed = list(&[
        "s3://bucket/train/",
        "s3://whole",
        "gs://bucket/a/b",
        "https://data.example/public/",
        "https://data.example:8443/other",
        "http://10.0.0.5/x/",
        "http://localhost:9000/",
    ]);
    for text in [
        "s3://bucket/train/x",
        "S3://bucket/train/x/y z.jpg",
        "s3://bucket/train/ä",
        "s3://bucket/train/%2e%2e/x",
        "s3://bucket/train/a@b",
        "s3://whole/anything/at/all",
        "s3://whole/",
        "gs://bucket/a/b",
        "gs://bucket/a/b/c",
        "https://data.example/public/x",
        "https://DATA.example:443/public/x",
        "HTTPS://data.example/public/x%20y",
        "https://data.example:8443/other/x",
        "https://data.example:8443/other",
        "http://10.0.0.5/x/y",
        "http://10.0.0.5:80/x/y",
        "http://localhost:9000/a/b",
    ] {
        assert!(passes(&allowed, text), "{text}");
    }
    let refused = [
        // Other buckets, prefixes and schemes.
        "s3://bucket/",
        "s3://bucket",
        "s3://bucket/train",
        "s3://bucket/training/x",
        "s3://bucket/Train/x",
        "s3://bucket/x/train/",
        "s3://bucke/train/x",
        "s3://buckets/train/x",
        "s3://Bucket/train/x",
        "s3://bucket.s3/train/x",
        "gs://bucket/train/x",
        "az://bucket/train/x",
        "s3://whole.evil/x",
        "s3://wholes/x",
        "gs://whole/x",
        "gs://bucket/a",
        "gs://bucket/a/bc",
        "gs://bucket/a/b.",
        "gs://bucket/ab",
        "s3a://bucket/train/x",
        "s3n://bucket/train/x",
        "file:///etc/passwd",
        "file://bucket/train/x",
        "ftp://data.example/public/x",
        "data:text/plain,x",
        "//data.example/public/x",
        "/public/x",
        "bucket/train/x",
        "",
        // Ways up and around in a bucket.
        "s3://bucket/train/../x",
        "s3://bucket/train/./x",
        "s3://bucket/train//x",
        "s3://bucket//train/x",
        "s3://bucket/train/x/..",
        "s3://bucket/train/..",
        "s3://bucket/../train/x",
        "s3://bucket\\train/x",
        "s3://bucket/train\\..\\x",
        "s3://bucket/train/\0",
        "s3://bucket/train/\n",
        "s3://user@bucket/train/x",
        "s3://bucket@evil/train/x",
        "s3://bucket:443/train/x",
        "s3:///bucket/train/x",
        "s3:/bucket/train/x",
        "s3:bucket/train/x",
        " s3://bucket/train/x",
        "s3://bucket /train/x",
        "s3://bück/train/x",
        // Other hosts, ports, schemes.
        "http://data.example/public/x",
        "https://data.example:80/public/x",
        "https://data.example:8443/public/x",
        "https://data.example/other/x",
        "https://data.example:8443/others",
        "https://data.example:8443/",
        "https://data.example:08443/other/x",
        "https://data.example./public/x",
        "https://data.example../public/x",
        "https://.data.example/public/x",
        "https://www.data.example/public/x",
        "https://data.example.evil.com/public/x",
        "https://evil.com/data.example/public/x",
        "https://dataXexample/public/x",
        "https://data.example%2eevil.com/public/x",
        "https://data.example%00.evil.com/public/x",
        "https://data%2eexample/public/x",
        "https://dаta.example/public/x",
        "https://data.example。/public/x",
        "https://ｄata.example/public/x",
        "https://data．example/public/x",
        "https://xn--dta-8cd.example/public/x",
        // Names before the host.
        "https://data.example@evil.com/public/x",
        "https://data.example:443@evil.com/public/x",
        "https://evil.com@data.example/public/x",
        "https://evil.com:pw@data.example/public/x",
        "https://evil.com\\@data.example/public/x",
        "https://evil.com/@data.example/public/x",
        "https://data.example\\.evil.com/public/x",
        "https://data.example/\\evil.com/public/x",
        "https://data.example#@evil.com/public/x",
        "https://data.example?@evil.com/public/x",
        "https:data.example/public/x",
        "https:/data.example/public/x",
        "https:///data.example/public/x",
        "https:\\\\data.example\\public\\x",
        "https://data.example /public/x",
        "https://data.example\t/public/x",
        "https://data.example\n/public/x",
        "https://\u{200b}data.example/public/x",
        // Ways up and around in a path.
        "https://data.example/public",
        "https://data.example/publicity/x",
        "https://data.example/Public/x",
        "https://data.example/public/../x",
        "https://data.example/public/..",
        "https://data.example/public/./x",
        "https://data.example/public//x",
        "https://data.example//public/x",
        "https://data.example/x/../public/x",
        "https://data.example/public/%2e%2e/x",
        "https://data.example/public/%2E%2E/x",
        "https://data.example/public/.%2e/x",
        "https://data.example/public/..%2fx",
        "https://data.example/public/..%5cx",
        "https://data.example/public%2fx",
        "https://data.example/public%2f..%2fx",
        "https://data.example/public/%252e%252e/x",
        "https://data.example/public/%c0%ae%c0%ae%2fx",
        "https://data.example/public/..;/x/../../y",
        "https://data.example/public/\\..\\x",
        "https://data.example/pub%6cic/x",
        "https://data.example/public/x?y=1",
        "https://data.example/public/x#y",
        "https://data.example/public/%00",
        "https://data.example/public/%",
        "https://data.example/public/%zz",
        "https://data.example/public/x y",
        "https://data.example?/public/x",
        // Other spellings of addresses.
        "http://10.0.0.5:8080/x/y",
        "http://10.0.5/x/y",
        "http://10.5/x/y",
        "http://167772165/x/y",
        "http://0xa000005/x/y",
        "http://0xa.0.0.5/x/y",
        "http://012.0.0.5/x/y",
        "http://010.0.0.5/x/y",
        "http://10.0.0.05/x/y",
        "http://10.0.0.5./x/y",
        "http://[::ffff:10.0.0.5]/x/y",
        "http://[::10.0.0.5]/x/y",
        "http://[10.0.0.5]/x/y",
        "http://10.0.0.5.nip.io/x/y",
        "http://10.0.0.6/x/y",
        "http://①⓪.0.0.5/x/y",
        "http://127.0.0.1:9000/a",
        "http://[::1]:9000/a",
        "http://localhost/a",
        "http://localhost:9001/a",
        "http://localhost.:9000/a",
        "https://localhost:9000/a",
        "http://localhost:9000@evil.com/a",
        "http://localhost:+9000/a",
        "http://localhost:9000:9000/a",
    ];
    assert!(refused.len() > 130, "{}", refused.len());
    for text in refused {
        assert!(!passes(&allowed, text), "{text}");
    }
    let url = Url::parse("s3://other/x").unwrap();
    assert!(allowed.refused(&url).to_string().contains("s3://bucket/train/, s3://whole/"));
}

#[test]
fn addresses_are_known_in_every_wrapping() {
    let table = [
        ("127.0.0.1", Reach::Loopback),
        ("127.255.0.1", Reach::Loopback),
        ("::1", Reach::Loopback),
        ("::ffff:127.0.0.1", Reach::Loopback),
        ("64:ff9b::7f00:1", Reach::Loopback),
        ("2002:7f00:1::", Reach::Loopback),
        ("10.1.2.3", Reach::Private),
        ("172.16.0.1", Reach::Private),
        ("172.31.255.255", Reach::Private),
        ("192.168.1.1", Reach::Private),
        ("100.64.0.1", Reach::Private),
        ("fc00::1", Reach::Private),
        ("fd12:3456::1", Reach::Private),
        ("::ffff:10.0.0.1", Reach::Private),
        ("169.254.169.254", Reach::Never),
        ("169.254.170.2", Reach::Never),
        ("::ffff:169.254.169.254", Reach::Never),
        ("::169.254.169.254", Reach::Never),
        ("64:ff9b::a9fe:a9fe", Reach::Never),
        ("2002:a9fe:a9fe::1", Reach::Never),
        ("100.100.100.200", Reach::Never),
        ("192.0.0.192", Reach::Never),
        ("168.63.129.16", Reach::Never),
        ("fe80::1", Reach::Never),
        ("febf::1", Reach::Never),
        ("fd00:ec2::254", Reach::Never),
        ("fd00:ec2::23", Reach::Never),
        ("fd20:ce::254", Reach::Never),
        ("2001::1", Reach::Never),
        ("0.0.0.0", Reach::Never),
        ("0.1.2.3", Reach::Never),
        ("::", Reach::Never),
        ("224.0.0.1", Reach::Never),
        ("255.255.255.255", Reach::Never),
        ("240.0.0.1", Reach::Never),
        ("ff02::1", Reach::Never),
        ("8.8.8.8", Reach::Public),
        ("172.32.0.1", Reach::Public),
        ("100.128.0.1", Reach::Public),
        ("2606:4700::1111", Reach::Public),
    ];
    for (address, wanted) in table {
        assert_eq!(reach(address.parse().unwrap()), wanted, "{address}");
    }
}

#[test]
fn a_name_may_not_lead_to_the_provider_or_hide_this_machine() {
    let open = Rules::default();
    let confined = Rules { allowed: Some(list(&["http://name/"])), ..Rules::default() };
    for rules in [&open, &confined] {
        for address in ["169.254.169.254", "fe80::1", "fd00:ec2::254", "::ffff:169.254.0.1"] {
            let why = rules.check_resolved("name", address.parse().unwrap()).unwrap_err();
            assert!(why.contains("name leads to"), "{why}");
        }
        for address in ["8.8.8.8", "10.0.0.1"] {
            assert!(rules.check_resolved("name", address.parse().unwrap()).is_ok());
        }
        assert!(rules.check_resolved("localhost", "127.0.0.1".parse().unwrap()).is_ok());
    }
    assert!(open.check_resolved("name", "127.0.0.1".parse().unwrap()).is_ok());
    assert!(confined.check_resolved("name", "127.0.0.1".parse().unwrap()).is_err());
    assert!(confined.check_resolved("name", "::1".parse().unwrap()).is_err());
}

#[test]
fn what_can_never_be_read_cannot_be_allowed() {
    for url in ["http://169.254.169.254/", "http://[fe80::1]/", "ftp://x/", "s3://", "file:///data"]
    {
        assert!(Allowed::new(&[url.to_owned()]).is_err(), "{url}");
    }
}
