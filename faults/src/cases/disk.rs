//! A disk that is full.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::{
    args::Store,
    outcome::Outcome,
    servers::{Postgres, pause},
    stage::{Context, Setup, Stage},
    world::Scene,
};

/// A small file system in memory; it is gone when this is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn make(folder: PathBuf, megabytes: u32) -> anyhow::Result<Self> {
        fs::create_dir_all(&folder)?;
        let size = format!("size={megabytes}m,mode=0755");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&folder).status();
        if !status.is_ok_and(|status| status.success()) {
            bail!("a small disk needs `mount`, as root: cannot mount a tmpfs at {}", folder.display());
        }
        Ok(Self(folder))
    }

    /// Fills it to the last byte.
    fn fill(&self) -> anyhow::Result<()> {
        use std::io::Write as _;

        let mut ballast = fs::File::create(self.ballast())?;
        for block in [1 << 16, 1 << 12, 1] {
            while ballast.write_all(&vec![0; block]).is_ok() {}
        }
        Ok(())
    }

    fn free(&self) -> anyhow::Result<()> {
        fs::remove_file(self.ballast()).context("remove the ballast")
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a server that has not quite ended may still hold a file.
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

/// The disk of the database is full for a while.
pub(crate) async fn full(context: &mut Context) -> anyhow::Result<Outcome> {
    let messages = context.messages(20_000, 8_000);
    let folder = context.servers.folder()?.join(format!("disk-{}", context.rng.u32(..)));
    let setup = Setup::new(messages);
    match context.pair.store {
        Store::Postgres => {
            let disk = SmallDisk::make(folder, 400)?;
            // Little log, so that it is the disk that fills and not the server that makes room.
            let settings = "max_wal_size = '64MB'\nmin_wal_size = '32MB'\nshared_buffers = '32MB'\n\
                            logging_collector = off\nfull_page_writes = on";
            let mut postgres = Postgres::make(&disk.0.join("postgres"), settings).await?;
            tokio::task::block_in_place(|| postgres.cluster.create_database("faults"))?;
            let scene = Scene::set(&mut context.servers, context.pair, setup.partitions, None).await?;
            let scene = scene.in_database(postgres.cluster.url("faults")).await?;
            let mut stage = Stage::on(context, setup, scene).await?;
            stage.spawn_all(2).await?;
            stage.until_acked(u64::from(messages) / 10).await?;
            disk.fill()?;
            stands_still(&mut stage, context.args.outage()).await?;
            disk.free()?;
            // A server that could not write its log has crashed, and one that cannot recover gives up: then it is
            // started by whoever looks after it.
            pause(Duration::from_secs(1)).await;
            if !postgres.runs() {
                postgres.start()?;
            }
            stage.resumed(Instant::now()).await?;
            let outcome = stage.finish(true).await;
            drop(postgres);
            drop(disk);
            outcome
        }
        Store::Sqlite => {
            let disk = SmallDisk::make(folder, 64)?;
            let scene =
                Scene::set(&mut context.servers, context.pair, setup.partitions, Some(Path::new(&disk.0))).await?;
            let mut stage = Stage::on(context, setup, scene).await?;
            stage.spawn_all(2).await?;
            stage.until_acked(u64::from(messages) / 10).await?;
            disk.fill()?;
            stands_still(&mut stage, context.args.outage()).await?;
            disk.free()?;
            stage.resumed(Instant::now()).await?;
            let outcome = stage.finish(true).await;
            drop(disk);
            outcome
        }
    }
}

/// Waits until nothing is acknowledged any more, and for the length of the outage.
async fn stands_still(stage: &mut Stage, outage: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut seen, mut since) = (stage.acked(), Instant::now());
    while since.elapsed() < outage {
        pause(Duration::from_millis(20)).await;
        if stage.acked() != seen {
            (seen, since) = (stage.acked(), Instant::now());
        }
        if Instant::now() > deadline {
            bail!("the disk is full and work goes on");
        }
    }
    stage.outcome.counted += 1;
    Ok(())
}
