"""Work on whole stores: copies, backups and restores, upgrades of earlier versions."""
