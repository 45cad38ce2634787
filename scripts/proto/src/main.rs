//! Makes Rust of the service's description, without any tool beside cargo's own.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("say where the crate is")?;
    let (proto, out) = (Path::new(&folder).join("proto"), Path::new(&folder).join("src/generated"));
    let mut compiler = protox::Compiler::new([&proto])?;
    compiler.include_source_info(true).include_imports(true).open_file("feedline.proto")?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".feedline.v1.Chunk")
        .out_dir(&out)
        .compile_fds(compiler.file_descriptor_set())?;
    std::fs::write(out.join("feedline.bin"), compiler.encode_file_descriptor_set())?;
    let hash = blake3::hash(&std::fs::read(proto.join("feedline.proto"))?);
    std::fs::write(out.join("made_from.txt"), format!("{hash}\n"))?;
    Ok(())
}
