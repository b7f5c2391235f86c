// Package seed finds the configuration on a labelled medium: a USB stick, a CD, or a disk of the
// hypervisor.
//
//	label ORLOPCFG          file machine.yaml
//	label cidata            file user-data (NoCloud; its other files are not read)
//
// Labels may be in upper or lower case. The file system is vfat or iso9660, on a whole disk or on a
// partition. The system does not mount it: a sandboxed process (pkg/diskprobe) reads the label and
// the single file. ORLOPCFG has precedence over cidata. Two media with the same label are an error,
// because the choice would be ambiguous.
//
// The package does not parse the configuration, and does not decide whether the machine uses it
// (docs/decisions/0017-configuration-medium.md).
package seed
