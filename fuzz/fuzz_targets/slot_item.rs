#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| terrace_fuzz::run("slot_item", data));
