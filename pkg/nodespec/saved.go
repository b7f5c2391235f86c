package nodespec

// SavepointSuffix ends the names of the files with what etcd held before an upgrade.
const SavepointSuffix = ".db"

// SavepointFile is the file, in the folder of what etcd kept, with what it held when a version of the
// system was upgraded.
func SavepointFile(version string) string { return version + SavepointSuffix }
