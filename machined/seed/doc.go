// Package seed finds the configuration that lies on a labelled medium: a memory stick, a CD, or a
// disk that the hypervisor adds.
//
//	label ORLOPCFG          file machine.yaml
//	label cidata            file user-data (NoCloud; what else lies there is not read)
//
// Labels may be in upper or lower case. The file system is vfat or iso9660, on the whole device or
// on a partition of it. It is never mounted: a confined process (pkg/diskprobe) looks at the labels
// and reads the one file. ORLOPCFG comes before cidata; two of the same label are an error, because
// nobody could say which was meant.
//
// The package does not parse what it finds, and does not decide whether it counts
// (docs/decisions/0017-configuration-medium.md).
package seed
