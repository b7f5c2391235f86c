package nodespec

// SavepointSuffix is the suffix of savepoint files.
const SavepointSuffix = ".db"

// SavepointFile returns the name of the savepoint, in paths.EtcdSnapshots, that was taken when this
// version of the system was upgraded.
func SavepointFile(version string) string { return version + SavepointSuffix }
