use feedline_ops::codec::*;
use feedline_ops::kernel::Rect;
use feedline_testkit::encode_jpeg as enc;
#[test]
fn probe_it() {
    let limits = Limits::default();
    for (bad_sub, good_sub) in [(Subsampling::S420, Subsampling::S420), (Subsampling::S444, Subsampling::S444), (Subsampling::S444, Subsampling::Gray)] {
        let good = enc(1, 33, 27, good_sub);
        let gh = probe(&good, &limits).unwrap();
        let bytes = enc(2, 33, 27, bad_sub);
        let mut last = String::new();
        for cut in 0..bytes.len() {
            let mut decoder = Decoder::new();
            let bad = &bytes[..cut];
            let Ok(h) = probe(bad, &limits) else { continue };
            let e = decoder.decode_region(bad, &h, Mode::Rgb, Rect::whole(33, 27)).err().map(|e| e.to_string());
            let g = decoder.decode_region(&good, &gh, Mode::Rgb, Rect::whole(33, 27)).err().map(|e| e.to_string());
            let g2 = decoder.decode_region(&good, &gh, Mode::Rgb, Rect::whole(33, 27)).err().map(|e| e.to_string());
            let line = format!("bad: {e:?} then good: {g:?} again: {g2:?}");
            if line != last { println!("{bad_sub:?} cut {cut}/{}: {line}", bytes.len()); last = line; }
        }
    }
}
