"""Pure arithmetic over records: the ledger, reservations, the verdict. Reads no disk, clock or configuration."""
