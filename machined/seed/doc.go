// Package seed finds the configuration that lies on a labelled medium: a memory stick, a CD, or a disk that the hypervisor adds.
//
//	label ORLOPCFG          file machine.yaml
//	label cidata, CIDATA    file user-data (NoCloud; what else lies there is not read)
//
// The file system is vfat or iso9660, on the whole device or on a partition of it. It is mounted read-only while the one file is
// read, and nothing on it is followed or executed. ORLOPCFG comes before cidata; two of the same label are an error, because nobody
// could say which was meant.
//
// The package does not parse what it finds, and does not decide whether it counts (docs/decisions/0017-configuration-medium.md).
package seed
