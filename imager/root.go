package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/slot/esp"
)

// part is the origin (Node.From) of the small files that the imager itself writes.
const part = "configuration"

// users are the users in /etc/passwd of the root. They cannot log in, because the system has no
// login.
var users = []struct {
	Name string
	ID   int
}{
	{"root", 0},
	{"apid", paths.UserApid},
	{"kube-api", paths.UserAPI},
	{"kube-controllers", paths.UserControllers},
	{"diskprobe", paths.UserProbe},
	{"metricsd", paths.UserMetrics},
	{"podlogd", paths.UserPodLogs},
	{"nobody", 65534},
}

// mountPoints are the empty directories of the root. The directories after paths.Data are for
// agents in pods, for example for storage and monitoring. These agents mount the directories on all
// systems. They cannot start if a directory is missing.
var mountPoints = []string{"/dev", "/proc", "/sys", "/run", "/tmp", "/sysroot", paths.State, paths.Data,
	"/boot", "/media", "/root", "/etc/pki", "/etc/ca-certificates", "/etc/selinux", "/etc/udev", "/usr/local/share/ca-certificates",
	"/usr/share/ca-certificates", "/usr/src"}

// links are the symbolic links of the root, from path to target. They merge /usr, refer to files
// that the running system writes, and give machined its other names: apid, metricsd, podlogd,
// diskprobe, bootcheck, attester and sealer.
var links = map[string]string{
	"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/lib64": "usr/lib64",
	"/etc/resolv.conf": paths.ResolvConf, "/etc/hosts": paths.Hosts, "/etc/hostname": paths.Hostname, "/etc/machine-id": paths.MachineID,
	"/etc/cni/net.d": paths.CNIConfig, // a third-party pod network writes there
	// hostPath volumes create directories below these paths. The targets are on the DATA partition
	// (machined/disk), because the root is read-only.
	"/opt": paths.HostOpt, "/mnt": paths.HostMnt, "/srv": paths.HostSrv, "/home": paths.HostHome, "/etc/kubernetes": paths.HostKubernetes,
	"/etc/mtab":     "../proc/self/mounts",
	"/usr/bin/apid": path.Base(paths.Machined),
	paths.Diskprobe: path.Base(paths.Machined),
	paths.Bootcheck: path.Base(paths.Machined),
	paths.Attester:  path.Base(paths.Machined),
	paths.Sealer:    path.Base(paths.Machined),
	paths.Metricsd:  path.Base(paths.Machined),
	paths.Podlogd:   path.Base(paths.Machined),
}

// addSystem adds mount points, links, users, and the files that describe the release.
func addSystem(t Tree, r buildinfo.Release) error {
	for _, m := range mountPoints {
		if err := t.Add(m, Node{Dir: true, Mode: 0o755, From: part}); err != nil {
			return err
		}
	}
	for name, target := range links {
		if err := t.Add(name, Node{Target: target, From: part}); err != nil {
			return err
		}
	}
	var passwd, group bytes.Buffer
	for _, u := range users {
		fmt.Fprintf(&passwd, "%s:x:%d:%d::/:/nonexistent\n", u.Name, u.ID, u.ID)
		fmt.Fprintf(&group, "%s:x:%d:\n", u.Name, u.ID)
	}
	releaseJSON, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"/etc/passwd":         passwd.Bytes(),
		"/etc/group":          group.Bytes(),
		"/etc/nsswitch.conf":  []byte("passwd: files\ngroup: files\nhosts: files dns\nprotocols: files\nservices: files\n"),
		"/usr/lib/os-release": osRelease(r),
		"/etc/localtime":      utc(),
		"/etc/timezone":       []byte("Etc/UTC\n"),
		paths.BuildInfo:       append(releaseJSON, '\n'),
	}
	for name, data := range files {
		if err := t.Add(name, Node{Mode: 0o644, Data: data, From: part}); err != nil {
			return err
		}
	}
	return t.Add("/etc/os-release", Node{Target: "../usr/lib/os-release", From: part})
}

// utc returns the file /etc/localtime for UTC, in the format of RFC 8536, version 2, without
// transitions. Machines use UTC. Pods that mount the file get the time zone from it.
func utc() []byte {
	var b bytes.Buffer
	for range 2 { // a block for readers of version 1, and a block for later readers
		b.WriteString("TZif2" + strings.Repeat("\x00", 15))
		// counts of UT indicators, standard indicators, leap seconds, transitions, types, bytes of
		// names
		for _, count := range []uint32{0, 0, 0, 0, 1, 4} {
			b.Write(binary.BigEndian.AppendUint32(nil, count))
		}
		// offset 0, no daylight saving time, index of the name; then the name
		b.WriteString("\x00\x00\x00\x00" + "\x00" + "\x00" + "UTC\x00")
	}
	b.WriteString("\nUTC0\n")
	return b.Bytes()
}

// osRelease returns the text of os-release(5). The UKI contains it, too: the boot loader shows and
// sorts the versions by it, and an upgrade reads the version of Kubernetes from it.
func osRelease(r buildinfo.Release) []byte {
	return fmt.Appendf(nil, "NAME=%q\nPRETTY_NAME=\"%s %s\"\nID=orlop\nVERSION_ID=%s\nIMAGE_ID=orlop\nIMAGE_VERSION=%s\nVARIANT_ID=%s\n%s=%s\n",
		r.Name, r.Name, r.Version, r.Version, r.Version, r.Profile, esp.KubernetesField, r.Kubernetes)
}

// addPrograms adds the executables that were built from source.
func addPrograms(t Tree, built map[string]string) error {
	for _, p := range programs {
		if p.Root == "" {
			continue
		}
		if err := t.Add(p.Root, Node{Mode: 0o755, Source: built[p.Name], From: p.Name}); err != nil {
			return err
		}
	}
	return nil
}

// addModules adds modules and their indexes. release is the kernel release, and files is the result
// of kernel.Tree.
func addModules(t Tree, release string, files map[string]string) error {
	for name, source := range files {
		n := Node{Mode: 0o644, Source: source, From: "kernel modules"}
		if err := t.Add(path.Join(paths.Modules, release, name), n); err != nil {
			return err
		}
	}
	return nil
}

// operatorCA returns the certificate (PEM) of the operator CA; nil if the name of the file is
// empty. It fails if the file does not have exactly a single certificate.
func operatorCA(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("operatorCA: %w: make it with `orlopctl gen operator --out %s`", err, filepath.Dir(file))
	}
	block, rest := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("operatorCA: %s: one certificate in PEM form expected, and nothing else", file)
	}
	return data, nil
}

// addImages adds the archive with the pause image, and the OCI archives of the profile.
func addImages(t Tree, pauseArchive []byte, more []string) error {
	if err := t.Add(path.Join(paths.Images, "pause.tar"), Node{Mode: 0o644, Data: pauseArchive, From: "container images"}); err != nil {
		return err
	}
	for _, file := range more {
		if err := t.Add(path.Join(paths.Images, filepath.Base(file)), Node{Mode: 0o644, Source: file, From: "container images"}); err != nil {
			return err
		}
	}
	return nil
}
