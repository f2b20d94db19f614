//! The bytes of `docs/formats/manifest.md`'s worked example, and the text of a dump.

use super::super::codec::{decode_group, encode_group};
use super::super::roll::snapshot_records;
use super::super::{BegunLog, KnownPool, KnownStamp, ListPlace, dump};
use super::*;

/// A flush's last group: table 7 joins, one key of table 5 has died.
fn example() -> Vec<Edit> {
    let meta = TableMeta {
        number: 7,
        file_bytes: 0x1234,
        entries: 300,
        deletes: 1,
        smallest: b"a".to_vec(),
        largest: b"zz".to_vec(),
        min_seq: 5,
        max_seq: 304,
        raw_bytes: 100,
    };
    vec![
        Edit::AddTable { level: 0, job: 3, meta },
        Edit::Counts { number: 5, live_delta: -2 },
        Edit::JobDone { id: 3 },
        Edit::FlushedSeq(304),
        Edit::NextFile(8),
    ]
}

const EXAMPLE: &[u8] = &[
    0x02, 0x17, // add table, 23 bytes
    0x00, 0x03, // level 0, job 3
    0x34, 0x12, 0, 0, 0, 0, 0, 0, // 0x1234 bytes
    0x07, 0xac, 0x02, 0x01, // number 7, 300 entries, 1 delete
    0x05, 0xb0, 0x02, 0x64, // sequence numbers 5 to 304, 100 raw bytes
    0x01, b'a', 0x02, b'z', b'z', // keys
    0x04, 0x02, 0x05, 0x03, // counts: table 5, -2
    0x07, 0x01, 0x03, // job 3 done
    0x08, 0x02, 0xb0, 0x02, // flushed 304
    0x09, 0x01, 0x08, // next file 8
];

#[test]
fn a_group_is_golden() {
    assert_eq!(encode_group(&example()), EXAMPLE);
    assert_eq!(decode_group(EXAMPLE).unwrap(), example());
}

#[test]
fn a_new_store_is_golden() {
    let records = snapshot_records(&super::super::State::new(identity()));
    let mut golden = vec![0x01, 0x28, 0x01];
    golden.extend_from_slice(b"0123456789abcdef");
    golden.extend_from_slice(b"\x03slm\x0cextent_bytes\x0565536");
    golden.extend_from_slice(&[0x08, 0x01, 0x00, 0x09, 0x01, 0x01, 0x0a, 0x01, 0x00, 0x0b, 0x00]);
    assert_eq!(records, [golden]);
}

#[test]
fn every_other_edit_is_golden() {
    let pool = KnownPool { uuid: *b"0123456789abcdef", generation: 300 };
    let meta =
        TableMeta { number: 7, smallest: b"a".to_vec(), largest: b"b".to_vec(), ..TableMeta::default() };
    let place = ListPlace { head: 300, id: 5 };
    let golden: [(Edit, &[u8]); 16] = [
        (
            Edit::AddList { level: 2, place, meta },
            b"\x12\x1d\x02\xac\x02\x05\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\x01a\x01b",
        ),
        (Edit::RemoveTable { number: 300 }, &[0x03, 0x02, 0xac, 0x02]),
        (Edit::Candidates(vec![1, 300]), &[0x05, 0x03, 0x01, 0xac, 0x02]),
        (Edit::AddCandidates(vec![1, 300]), &[0x14, 0x03, 0x01, 0xac, 0x02]),
        (Edit::JobStarted { id: 4, kind: JobKind::Flush, inputs: vec![] }, &[0x06, 0x02, 0x04, 0x00]),
        (
            Edit::JobStarted { id: 5, kind: JobKind::Compaction, inputs: vec![1, 2] },
            &[0x06, 0x04, 0x05, 0x01, 0x01, 0x02],
        ),
        (Edit::LogNumber(9), &[0x0a, 0x01, 0x09]),
        (Edit::MoveTable { number: 300, level: 6 }, &[0x0c, 0x03, 0xac, 0x02, 0x06]),
        (Edit::LogEnd { number: 7, bytes: 300 }, &[0x0d, 0x03, 0x07, 0xac, 0x02]),
        (
            Edit::LogBegun(BegunLog { number: 300, epoch: 0x0807_0605_0403_0201 }),
            &[0x0f, 0x0a, 0xac, 0x02, 1, 2, 3, 4, 5, 6, 7, 8],
        ),
        (Edit::SetBucket { lower: vec![], flushed: 0 }, &[0x10, 0x02, 0x00, 0x00]),
        (
            Edit::SetBucket { lower: b"key".to_vec(), flushed: 300 },
            &[0x10, 0x06, 0x03, b'k', b'e', b'y', 0xac, 0x02],
        ),
        (Edit::RemoveBucket { lower: b"key".to_vec() }, &[0x11, 0x04, 0x03, b'k', b'e', b'y']),
        (Edit::Pool(pool), b"\x0e\x120123456789abcdef\xac\x02"),
        (Edit::Stamp(KnownStamp { slot: 300, number: 5 }), &[0x13, 0x03, 0xac, 0x02, 0x05]),
        (Edit::SnapshotEnd, &[0x0b, 0x00]),
    ];
    for (edit, bytes) in golden {
        assert_eq!(encode_group(std::slice::from_ref(&edit)), bytes, "{edit}");
        assert_eq!(decode_group(bytes).unwrap(), [edit]);
    }
}

#[test]
fn no_prefix_of_a_group_reads_past_its_end() {
    for len in 0..EXAMPLE.len() {
        // A cut between edits is a shorter group; the log's framing rules that out.
        if let Ok(edits) = decode_group(&EXAMPLE[..len]) {
            assert!(example().starts_with(&edits));
        }
    }
}

#[test]
fn a_dump_is_readable() {
    let (fs, manifest) = fresh();
    manifest.apply(&[add(5)]).unwrap();
    manifest.apply(&[Edit::JobStarted { id: 3, kind: JobKind::Compaction, inputs: vec![5] }]).unwrap();
    manifest.apply(&example()).unwrap();
    manifest.apply(&[bucket(b"", 20), bucket(b"k\n", 4), bucket(b"x", 6)]).unwrap();
    manifest.apply(&[Edit::RemoveBucket { lower: b"x".to_vec() }]).unwrap();
    let mut out = Vec::new();
    dump(&fs, dir(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    for line in [
        "MANIFEST-000001",
        "identity 30313233343536373839616263646566 engine slm extent_bytes=65536",
        "job 3 started: compaction of [5]",
        "add table 7 level 0 by job 3: 300 entries, 1 deletes, 4660 bytes, seq 5..=304, keys \"a\"..=\"zz\"",
        "table 5 live -2",
        "state: 2 tables, 0 candidates, 0 open jobs, flushed 304, next file 8, logs from 0",
        "table 5: level 0, 88 live of 100 entries",
        "bucket from \"k\\n\" flushed up to 4",
        "bucket from \"x\" goes to the one before it",
        "  bucket from \"\": flushed 20\n  bucket from \"k\\n\": flushed 4\n  table 5",
    ] {
        assert!(text.contains(line), "{line}\nis not in\n{text}");
    }
}
