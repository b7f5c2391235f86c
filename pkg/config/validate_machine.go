package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/kernel/sysctl"
)

// machineValidator checks the Machine document.
type machineValidator struct {
	checks
	cluster *Cluster // nil without a Cluster document
}

func (v machineValidator) machine(m *Machine) {
	v.objectName("Machine.metadata.name", m.Metadata.Name)
	v.limits("Machine", reflect.ValueOf(*m))
	const spec = "Machine.spec"
	for i, ca := range m.Spec.Trust.OperatorCAs {
		v.authority(fmt.Sprintf("%s.trust.operatorCAs[%d]", spec, i), ca)
		v.signs(fmt.Sprintf("%s.trust.operatorCAs[%d]", spec, i), ca, clients)
		for j, other := range m.Spec.Trust.OperatorCAs[:i] {
			if !ca.IsZero() && ca.PEM() == other.PEM() {
				v.on(fmt.Sprintf("%s.trust.operatorCAs[%d]", spec, i), wrong{reason: fmt.Sprintf("the same certificate as operatorCAs[%d]", j)})
			}
		}
	}
	if m.Spec.Trust.Approvals != nil {
		v.approvals(spec+".trust.approvals", m.Spec.Trust.Approvals)
	}
	if m.Spec.Reserved.Memory < 128<<20 {
		v.on(spec+".reserved.memory", wrong{reason: m.Spec.Reserved.Memory.String() + " is too little for the system", expected: "at least 128MiB"})
	}
	if m.Spec.Join != nil {
		v.join(spec+".join", m)
	}
	if m.Spec.Install != nil {
		v.install(spec+".install", m.Spec.Install)
	}
	if m.Spec.Disk.Encryption != nil {
		v.diskEncryption(spec+".disk.encryption", m.Spec.Disk.Encryption)
	}
	v.node(spec+".node", &m.Spec.Node)
	v.egress(spec+".egress", &m.Spec.Egress)
	v.imageRegistries(spec+".registries", m.Spec.Registries)
	v.logging(spec+".logging", &m.Spec.Logging, m.Spec.Egress.CA)
	v.extensions(spec+".extensions", m.Spec.Extensions)
	if m.Spec.Metrics != nil {
		v.metrics(spec+".metrics", m.Spec.Metrics)
	}
	if m.Spec.Reserved.CPU < 50 {
		v.on(spec+".reserved.cpu", wrong{reason: fmt.Sprintf("%q is too little for the system", m.Spec.Reserved.CPU), expected: "at least 50m"})
	}
	for name, value := range m.Spec.Sysctls {
		path := spec + `.sysctls["` + shorten(name) + `"]`
		v.sysctl(path, name, value)
		if other := sysctl.Conflict(name, m.Spec.Sysctls); other != "" && name < other {
			v.on(path, wrong{reason: fmt.Sprintf("%s sets the same value of the kernel, so only one of them could take effect", quote(other)), expected: "one of the two"})
		}
	}
	seen := map[string]int{}
	for i, name := range m.Spec.KernelModules {
		path := fmt.Sprintf("%s.kernelModules[%d]", spec, i)
		v.kernelModule(path, name)
		same := strings.ReplaceAll(name, "-", "_") // modprobe treats both as equal
		if j, twice := seen[same]; twice && name != "" {
			v.on(path, wrong{reason: fmt.Sprintf("the same module as kernelModules[%d]", j)})
			continue
		}
		seen[same] = i
	}
}

// diskEncryption validates the encryption of STATE and DATA.
func (v machineValidator) diskEncryption(path string, e *DiskEncryption) {
	v.recipients(path+".recovery.recipients", "the recovery key", e.Recovery.Recipients)
	if v.broken[path+".unlock"] {
		return
	}
	tpm, none := slices.Contains(e.Unlock, UnlockTPM), slices.Contains(e.Unlock, UnlockNone)
	switch {
	case len(e.Unlock) != 1:
		v.on(path+".unlock", wrong{reason: fmt.Sprintf("%d ways to open the partitions", len(e.Unlock)), expected: "one: tpm, or none for partitions that are not encrypted"})
	case tpm && len(e.Recovery.Recipients) == 0 && !v.broken[path+".recovery.recipients"]:
		v.on(path, wrong{reason: "without a recovery key, a change of the firmware can lose STATE and DATA", expected: "recovery.recipients with at least one public key of age"})
	case none && len(e.Recovery.Recipients) > 0:
		v.on(path+".recovery.recipients", wrong{reason: "partitions that are not encrypted have no recovery key", expected: "unlock tpm, or no recipients"})
	}
}

// kernelModule validates a module's name: at most 55 characters. MODULE_NAME_LEN in
// linux/moduleparam.h is 64 minus the size of a pointer, so 56, and includes the final zero byte.
func (v machineValidator) kernelModule(path, name string) {
	bad := name == "" || len(name) > 55
	for i := range len(name) {
		c := name[i]
		bad = bad || !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-')
	}
	if bad {
		w := wrong{reason: fmt.Sprintf("%s is not the name of a module", quote(name)), expected: `letters, digits, "_" and "-", at most 55 characters`}
		for _, ending := range []string{".ko", ".ko.xz", ".ko.zst", ".ko.gz"} {
			if base, ok := strings.CutSuffix(name, ending); ok {
				w.nearest = base
			}
		}
		v.on(path, w)
	}
}

// sysctl validates a kernel parameter: its name must be below /proc/sys, it must not be a parameter
// that the system sets itself, and the value must not be too low for the system.
func (v machineValidator) sysctl(path, name, value string) {
	if err := sysctlName(name); err != "" {
		v.on(path, wrong{reason: "the name " + err, expected: "a dotted name below /proc/sys, such as net.core.somaxconn"})
		return
	}
	if why := sysctl.ReservedReason(name); why != "" {
		v.on(path, wrong{reason: "the system sets it itself: " + why, hint: "remove it"})
	}
	if strings.ContainsAny(value, "\n\x00") || strings.TrimSpace(value) == "" || len(value) > 1024 {
		v.on(path, wrong{reason: quote(value) + " is not a value", expected: "one line of at most 1024 characters"})
		return
	}
	if why, least := sysctl.TooLow(name, value); why != "" {
		v.on(path, wrong{reason: why, expected: fmt.Sprintf("at least %d", least)})
	}
}

// sysctlName returns the problem with a parameter's name; "" if the name is valid. A "/" represents
// a dot within a part of the name, as in sysctl(8): net.ipv4.conf.eth0/100.arp_ignore.
func sysctlName(name string) string {
	parts := strings.Split(name, ".")
	if len(parts) < 2 {
		return "has no dot"
	}
	for _, part := range parts {
		if part == "" || part[0] == '/' || part[len(part)-1] == '/' || strings.Contains(part, "//") {
			return "has an empty part"
		}
		for _, r := range part {
			if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '/') {
				return fmt.Sprintf("contains %q", r)
			}
		}
	}
	switch parts[0] {
	case "abi", "dev", "fs", "kernel", "net", "user", "vm":
		return ""
	}
	return fmt.Sprintf("begins with %s", quote(parts[0]))
}
