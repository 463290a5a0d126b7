"""The only room that knows verl: everything plugs into verl 0.9.1 through its registries and by subclassing (docs/verl.md)."""
