//! Makes Rust of the service's description, without any tool beside cargo's own.

#[cfg(feature = "grpc")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::path::PathBuf;

    println!("cargo:rerun-if-changed=proto/feedline.proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_source_info(true).include_imports(true).open_file("feedline.proto")?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("feedline.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".feedline.v1.Chunk")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

#[cfg(not(feature = "grpc"))]
fn main() {}
