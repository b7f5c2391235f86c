package integration

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/imager/ociarchive"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/test/testimage"
	"github.com/orlop-os/orlop/vm"
)

// The verbs of the stories, besides testscript's own (stdout, stderr, cmp, grep, …).
//
// All times in a story are the machines' time. It differs from the time outside after
//
//	dilate N
//	    first verb of a story: time passes N times more slowly for the machines (vm.Clock)
//
// The other verbs are
//
//	router MODE
//	    first verb of a story: the network has IPv6 alone, and its router configures machines by
//	    MODE: advertised (router advertisements), stateless (and settings by DHCPv6), stateful
//	machine NAME [key=value…]
//	    make a machine and switch it on; machineVerb lists the keys
//	console NAME REGEXP [DEADLINE]
//	    wait for a line on its console, after the last matched line
//	fingerprint NAME
//	    read its fingerprint from the console and verify it by that ($FINGERPRINT_NAME)
//	code NAME
//	    read its pairing code from the console ($CODE_NAME)
//	trust NAME SECRETS
//	    verify it by the cluster's machine CA from now on
//	orlopctl ARGS, kubectl ARGS
//	    run the program as a user would; its output goes to stdout and stderr
//	retry DEADLINE VERB ARGS
//	    repeat orlopctl or kubectl until it succeeds
//	door NAME
//	    check that its API rejects unauthorized calls, measure authorized calls: build/api.json
//	nocert NAME
//	    try to connect without a certificate; succeeds unless the API rejects the connection
//	image FILE [NAME]
//	    build the test image as an OCI archive; the default NAME is test.orlop.dev/testpod:1
//	addon-archive FILE NAME YAML
//	    write an OCI archive of artifact NAME (with a tag) that holds the file YAML, in the form
//	    of `flux push artifact`; $ARTIFACT becomes its name with the digest
//	cluster NAME [KEY=VALUE… | KIND.FIELD YAML]
//	    make a machine (with a key of machine) and a cluster on it with the test image, and with a
//	    field of its configuration as in set; orlopctl and kubectl use it
//	portforward TARGET PORT PATH
//	    kubectl port-forward with one HTTP request; prints the answer
//	outside DEADLINE REGEXP URL
//	    fetch repeatedly from a host in the network until the answer matches, or with a !
//	    no longer matches
//	ports NAME PORT…
//	    scan all TCP ports from the network: exactly these are open
//	capture
//	    check that no packet went to an address outside the closed network since its creation
//	kill-services NAME [SERVICE…]
//	    kill -9 services through the API (default: all); each runs within 10 s, and becomes ready
//	follow POD WATCHER
//	    kubectl logs -f while the pod writes, until its log was rotated twice: each line occurs
//	    once and in order; the pod WATCHER of kube-system sees the files in /logs
//	issuer DOCUMENTS EXPRESSION KUBECONFIG
//	    the Cluster document trusts an issuer of tokens in the network, with user names by
//	    EXPRESSION; KUBECONFIG is for its user dora
//	pod-token NODE KUBECONFIG
//	    KUBECONFIG has the token of a pod of the default namespace on NODE
//	refused-calls N
//	    make N failing calls as the operator, sixteen at a time
//	cut-stream NAME
//	    cut the power during a capture of its packets
//	kubelet NAME PATH STATUS [KUBECONFIG]
//	    call the kubelet, with KUBECONFIG or anonymously, until it answers with that status
//	plug NAME DISK MIB, unplug NAME DISK
//	    add a disk to its SCSI controller, or remove it
//	disk NAME FROM
//	    while it is off: its first disk becomes a copy of the system disk of machine FROM, which
//	    is off; "image": the image; or "blank"
//	swap NAME DISK
//	    while it is off: a disk and a blank disk of the same size change places; the next swap
//	    changes them back
//	settled SERVICE DURATION
//	    wait until a service has run for this time
//	writes start|check, writes stop [resumed]
//	    write ConfigMaps, at most 20 a second; resumed: fail unless a write has failed and a later
//	    one was acknowledged; check: all that were acknowledged since the first start exist
//	reads KUBECONFIG, reads stop
//	    read from the API repeatedly, each time over a new connection; stop: no read has failed
//	history start MACHINE…, history next, history stop
//	    run clients that read and write registers at these API servers; next gives them new
//	    registers; stop checks that their history is linearizable: no acknowledged write is lost
//	tools [DIRECTORY]
//	    use the orlopctl and the kubectl of a directory below ${VERSIONS}, or the present ones
//	client start ADDRESS, client stop
//	    write and read at ADDRESS, five requests a second; stop: no request has failed twice,
//	    and every acknowledged write exists
//	network cut|join NAME
//	    disconnect a machine from the network, or connect it again
//	cable pull|plug NAME N
//	    pull the cable of a machine's N-th NIC out (0 is the first), so that it loses the carrier,
//	    or plug it in again
//	lldp NAME|off
//	    the switch announces itself as NAME on all ports (LLDP), or ends the announcements
//	bgp start ASN
//	    the gateway is a router with BGP for every machine; outside and client go by its routes,
//	    in turn over the machines that announce an address
//	bgp DEADLINE ADDRESS [NAME…]
//	    wait until exactly these machines announce the address
//	trunk NAME UNTAGGED [ID…]
//	    the port of NAME (a machine, NAME/N for its N-th NIC, or gateway) has frames of VLAN
//	    UNTAGGED without a tag (0: none), and frames of the others with one
//	bundle NAME…
//	    the switch aggregates these ports by LACP
//	leader
//	    $LEADER becomes the machine with the leader of etcd, $FOLLOWER another machine
//	powercut NAME, poweron NAME
//	    operate the power switch
//	hang NAME
//	    stop its processors, until its power is cut
//	bmc start FILE NAME…
//	    a host in the network is the management controller of these machines, by Redfish; FILE
//	    becomes their Secrets, NAME-power
//	bmc did NAME
//	    prints the operations of its power switch: on, off, button, restart
//	damage NAME WHAT
//	    while it is off: flip PARTITION, one byte of it; fill MIB, its ESP except for this space;
//	    variables, erase the firmware's; disk, replace it by a new disk with only the image
//	forge-ticket DOCUMENTS NAME
//	    replace the signature of the ticket in them by that of a foreign CA
//	operators PATCH CA…
//	    PATCH makes a machine trust exactly the operators with these CA files
//	leaks SECRETS FILE…
//	    a file contains a private key or another secret of SECRETS; with a ! no file does
//	set DOCUMENTS KIND.FIELD[.FIELD…] YAML
//	    set a field of the spec in the document of this kind; null removes it
//	cut-install NAME DOCUMENTS OPERATION
//	    install, and cut the power during this operation of the installation
//	cut-upgrade NAME BUNDLE OPERATION
//	    upload an upgrade, and cut the power during this operation of the upgrade
//	abandon BUNDLE OPERATION MIB
//	    run orlopctl upgrade -f, and kill it when the machine has done MIB of this operation
//	at-once NAME NAME orlopctl ARGS
//	    call two machines at the same time through another; exactly one call succeeds ($FIRST),
//	    and the error of the other ($SECOND) goes to stderr
//	registry BUNDLE CA
//	    start a registry ($REGISTRY) with a bundle as orlop/test:1; CA is its CA
//	releases PATCH BUNDLE…
//	    start a registry ($REGISTRY) with bundles as orlop/test:1, orlop/test:2 and so on, with
//	    the digests $DIGEST_1, $DIGEST_2; PATCH makes a machine use it; $VERSION is the image's
//	extensions PATCH NAME…
//	    start a registry with the extensions below ${VERSIONS}/extensions with these names, such
//	    as gvisor/gvisor; $EXTENSION_1, $EXTENSION_2 and so on are their references; PATCH makes
//	    a machine use the registry
//	mirror PATCH NAME
//	    start a registry with the test image as NAME (REGISTRY/…) below a path, for a user; PATCH
//	    makes it a mirror of REGISTRY
//	signed PATCH RULES ARCHIVE NAME
//	    start a registry with the test image as NAME:unsigned, NAME:wrong (signed by another key)
//	    and NAME:good; ARCHIVE has NAME:imported with its signature. PATCH makes the registry a
//	    mirror, RULES requires signatures of the images of REGISTRY, and none of the test image
//	secure start PATCH
//	    a host in the network resolves its name, secure.site.example, by DNS over TLS, and has a
//	    time server with NTS; PATCH makes a machine use both
//	secure silent, secure honest
//	    its DNS answers no query, or works again
//	bucket start PATCH KEY
//	    start an object store (S3); PATCH makes a machine upload its snapshots there, encrypted
//	    for KEY
//	bucket newest FILE KEY
//	    FILE becomes the newest object, which must be a snapshot that KEY decrypts
//	receiver start FILE
//	    a host in the network receives JSON lines over TLS from machines of the cluster; FILE
//	    becomes the patch that ships logs to it, as receiver archive
//	receiver otlp FILE
//	    the same over OTLP, also with the logs of pods
//	receiver kill, receiver again
//	    stop it with the data in its sockets, or start it again
//	receiver has DEADLINE REGEXP
//	    wait until a matching line has arrived
//	receiver pod DEADLINE POD TEXT NUMBER
//	    wait until it has the lines "TEXT 1" to "TEXT NUMBER" of a pod, in order
//	receiver audit DEADLINE
//	    wait until it has the whole audit log, in order, and verify its chain
//	receiver requests DEADLINE REGEXP
//	    wait until a line of the audit log of Kubernetes matches, and verify the chain of all of
//	    its lines
//	proxy start PATCH
//	    a host in the network is an HTTP proxy with a user and a password; PATCH makes a machine
//	    use it
//	proxy used DEADLINE REGEXP
//	    wait until a client has connected through it to a matching host:port
//	transit start PATCH
//	    a host in the network is a key manager (Vault's Transit); PATCH makes a machine decrypt
//	    Secrets with it
//	transit rotate, transit seal, transit unseal
//	    its key gets another version; it answers no request, or works again
//	down NAME [DEADLINE [REASON]]
//	    wait until it has powered off; REASON is QEMU's (guest-shutdown, guest-reset)
//
// and for failures, in bad_test.go:
//
//	dhcp on|off, ntp on|off
//	    let the closed network's servers answer or not
//	exits STATUS orlopctl ARGS
//	    check that orlopctl ends with this status
//	await DEADLINE REGEXP orlopctl|kubectl ARGS
//	    repeat the command until its output matches, or with a ! no longer matches
//	refuses NAME FILE
//	    send documents that orlopctl rejects: the machine rejects them too; prints its error
//	expired DIR
//	    make an expired operator certificate (client.crt, client.key)
//	button NAME
//	    press the power button
//	unchanged NAME
//	    its disk has exactly the content that it had at its creation
func (s *story) verbs() map[string]func(ts *testscript.TestScript, neg bool, args []string) {
	return map[string]func(ts *testscript.TestScript, neg bool, args []string){
		"dilate":        s.dilateVerb,
		"router":        s.routerVerb,
		"machine":       s.machineVerb,
		"cut-upgrade":   s.cutVerb,
		"cut-install":   s.cutInstallVerb,
		"set":           s.setVerb,
		"abandon":       s.abandonVerb,
		"at-once":       s.atOnceVerb,
		"registry":      s.registryVerb,
		"releases":      s.releasesVerb,
		"extensions":    s.extensionsVerb,
		"mirror":        s.mirrorVerb,
		"signed":        s.signedVerb,
		"damage":        s.damageVerb,
		"settled":       s.settledVerb,
		"cluster":       s.clusterVerb,
		"follow":        s.followVerb,
		"console":       s.consoleVerb,
		"fingerprint":   s.fingerprintVerb,
		"code":          s.codeVerb,
		"trust":         s.trustVerb,
		"forge-ticket":  s.forgeTicketVerb,
		"door":          s.doorVerb,
		"orlopctl":      s.program("orlopctl"),
		"kubectl":       s.program("kubectl"),
		"retry":         s.retryVerb,
		"nocert":        s.nocertVerb,
		"image":         s.imageVerb,
		"addon-archive": s.addonArchiveVerb,
		"portforward":   s.portforwardVerb,
		"outside":       s.outsideVerb,
		"ports":         s.portsVerb,
		"capture":       s.captureVerb,
		"kill-services": s.killVerb,
		"issuer":        s.issuerVerb,
		"pod-token":     s.podTokenVerb,
		"kubelet":       s.kubeletVerb,
		"plug":          s.plugVerb,
		"unplug":        s.unplugVerb,
		"disk":          s.diskVerb,
		"swap":          s.swapVerb,
		"refused-calls": s.refusedCallsVerb,
		"cut-stream":    s.cutStreamVerb,
		"writes":        s.writesVerb,
		"reads":         s.readsVerb,
		"client":        s.clientVerb,
		"history":       s.historyVerb,
		"tools":         s.toolsVerb,
		"network":       s.networkVerb,
		"cable":         s.cableVerb,
		"lldp":          s.lldpVerb,
		"bgp":           s.bgpVerb,
		"trunk":         s.trunkVerb,
		"bundle":        s.bundleVerb,
		"leader":        s.leaderVerb,
		"powercut":      s.powercutVerb,
		"poweron":       s.poweronVerb,
		"hang":          s.hangVerb,
		"bmc":           s.bmcVerb,
		"bucket":        s.bucketVerb,
		"secure":        s.secureVerb,
		"receiver":      s.receiverVerb,
		"proxy":         s.proxyVerb,
		"transit":       s.transitVerb,
		"down":          s.downVerb,
		"dhcp":          s.dhcpVerb,
		"ntp":           s.ntpVerb,
		"exits":         s.exitsVerb,
		"await":         s.awaitVerb,
		"refuses":       s.refusesVerb,
		"expired":       s.expiredVerb,
		"button":        s.buttonVerb,
		"unchanged":     s.unchangedVerb,
		"leaks":         s.leaksVerb,
		"operators":     s.operatorsVerb,
	}
}

func need(ts *testscript.TestScript, neg bool, args []string, least, most int, usage string) {
	if neg {
		ts.Fatalf("! %s means nothing", usage)
	}
	if len(args) < least || (most >= 0 && len(args) > most) {
		ts.Fatalf("usage: %s", usage)
	}
}

// lasts converts a duration of the machines to a duration outside.
func (s *story) lasts(d time.Duration) time.Duration { return s.network.Clock().Outside(d) }

// timeouts returns a program's arguments with the value of --timeout converted to the time outside.
func (s *story) timeouts(ts *testscript.TestScript, args []string) []string {
	args = slices.Clone(args)
	for i, a := range args {
		if value, joined := strings.CutPrefix(a, "--timeout="); joined {
			args[i] = "--timeout=" + s.lasts(deadlineOf(ts, value)).String()
		} else if i > 0 && args[i-1] == "--timeout" {
			args[i] = s.lasts(deadlineOf(ts, a)).String()
		}
	}
	return args
}

func deadlineOf(ts *testscript.TestScript, text string) time.Duration {
	d, err := time.ParseDuration(text)
	ts.Check(err)
	return d
}

// machineVerb's keys. Each changes the default machine (4 GiB of memory, a disk of 8 GiB with the
// image):
//
//	memory=MIB    size of the memory
//	cpus=N        number of processors; the default is 2
//	disk=MIB      size of the disk, at least the size of the image
//	profile=NAME  the image of another profile
//	secureboot    a firmware with Secure Boot, in setup mode; secureboot=NAME: with the keys that
//	              machine NAME has enrolled, which must be off
//	tpm           a TPM 2.0; its state stays with the machine
//	blank=MIB,…   blank disks of these sizes (disk0, disk1, …) instead of the disk with the image
//	more=MIB,…    further blank disks of these sizes (more0, more1, …)
//	cdrom=FILE    this artifact of the image is a CD in its drive; without blank=, it has no disk
//	usb=FILE      the same, on a USB stick
//	netboot=HOW   it boots netboot.efi over the network: pxe or http
//	kernel=FILE   the firmware gets this boot image directly, and has no other boot option
//	loader=NAME   its firmware boots another boot loader, ipxe or grub, which boots netboot.efi
//	first=MIB     another blank disk, before the others in the kernel's order; the firmware can
//	              ignore it
//	foreign       a foreign partition takes all the space after the partitions of the image
//	flip          one byte of ROOT-A is changed
//	rtc=TIME      time of the hardware clock at power-on (RFC 3339)
//	nonic         no network card
//	nics=N        this number of network cards
//	noreboot      a reset of the machine ends it
//	scsi          a SCSI controller to which plug can add a disk
//	config=FILE   another disk, labeled ORLOPCFG, with FILE as machine.yaml
//	cidata=FILE   another disk, labeled CIDATA, with FILE as user-data
//	iso=FILE      the same as a CD image of ISO level 4, labeled cidata
//	photos=MIB    another disk, of this size, with a user's file system
//	member=MIB    another disk, of this size, with the metadata of a RAID member at its end
func (s *story) machineVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, -1, "machine NAME [key=value…]")
	spec := vm.MachineSpec{Name: args[0], MemoryMiB: 4096, CPUs: 2, Watchdog: true}
	// An argument that the boot image must not pass to its kernel (docs/decisions/0089).
	spec.QEMU.Args = []string{"-smbios", "type=11,value=io.systemd.stub.kernel-cmdline-extra=from-smbios"}
	dir, size := *imageDir, int64(8192)
	var blank, media []vm.Disk
	var overNetwork, kernel, loader string
	var first []vm.Disk
	var damage func(file string) error
	var others []vm.Disk // the firmware can ignore them
	for _, a := range args[1:] {
		key, value, _ := strings.Cut(a, "=")
		var err error
		switch key {
		case "memory":
			spec.MemoryMiB, err = strconv.Atoi(value)
		case "cpus":
			spec.CPUs, err = strconv.Atoi(value)
		case "disk":
			size, err = strconv.ParseInt(value, 10, 64)
		case "profile":
			dir = filepath.Join(*versions, value)
		case "secureboot":
			spec.Firmware.SecureBoot = true
			if value == "" {
				break
			}
			if s.machine(ts, value).Running() {
				ts.Fatalf("machine: %s is on", value)
			}
			spec.Firmware.Vars = vm.VarsPath(s.machine(ts, value))
		case "tpm":
			spec.TPM = true
		case "blank":
			for text := range strings.SplitSeq(value, ",") {
				mib, err := strconv.ParseInt(text, 10, 64)
				ts.Check(err)
				blank = append(blank, vm.Disk{Name: fmt.Sprintf("disk%d", len(blank)), SizeMiB: mib})
			}
		case "cdrom":
			media = append(media, vm.Disk{Name: "cd", Image: value, Bus: vm.BusCD})
		case "usb":
			media = append(media, vm.Disk{Name: "stick", Image: value, Bus: vm.BusUSB, SizeMiB: 1})
		case "more":
			for i, text := range strings.Split(value, ",") {
				mib, err := strconv.ParseInt(text, 10, 64)
				ts.Check(err)
				others = append(others, vm.Disk{Name: fmt.Sprintf("more%d", i), SizeMiB: mib})
			}
		case "netboot":
			overNetwork = value
		case "kernel":
			kernel = value
		case "loader":
			loader = value
		case "first":
			var mib int64
			mib, err = strconv.ParseInt(value, 10, 64)
			first = []vm.Disk{{Name: "first", SizeMiB: mib}}
		case "foreign":
			damage = addForeignPartition
		case "flip":
			damage = flipRoot
		case "rtc":
			spec.RTC, err = time.Parse(time.RFC3339, value)
		case "nonic":
			spec.NIC.Omit = true
		case "nics":
			spec.NIC.More, err = strconv.Atoi(value)
			spec.NIC.More--
		case "scsi":
			spec.QEMU.Args = append(spec.QEMU.Args, "-device", "virtio-scsi-pci,id=scsi0")
		case "noreboot":
			spec.QEMU.NoReboot = true
		case "config":
			others = append(others, s.medium(ts, spec.Name, "ORLOPCFG", "machine.yaml", value))
		case "cidata":
			others = append(others, s.medium(ts, spec.Name, "CIDATA", "user-data", value))
		case "iso":
			others = append(others, s.disc(ts, spec.Name, value))
		case "photos":
			others = append(others, s.photos(ts, spec.Name, value))
		case "member":
			others = append(others, s.member(ts, spec.Name, value))
		default:
			ts.Fatalf("machine: unknown key %q", a)
		}
		ts.Check(err)
	}
	spec.Disks = blank
	switch {
	case kernel != "":
		spec.QEMU.Args = append(spec.QEMU.Args, "-kernel", filepath.Join(dir, kernel))
	case loader != "":
		media = append(media, s.otherLoader(ts, spec.Name, dir, loader))
	case len(blank)+len(media) == 0 && overNetwork == "": // the system is already on a disk
		spec.Disks = vm.BootDisk(filepath.Join(dir, "disk.raw"), size)
		if damage != nil {
			spec.Disks[0].Image = filepath.Join(s.dir, spec.Name+"-image.raw")
			ts.Check(copyImage(filepath.Join(dir, "disk.raw"), spec.Disks[0].Image, size))
			ts.Check(damage(spec.Disks[0].Image))
		}
	}
	for _, d := range media {
		if !filepath.IsAbs(d.Image) {
			d.Image = filepath.Join(dir, d.Image)
		}
		spec.Disks = append(spec.Disks, d)
	}
	for _, d := range spec.Disks {
		spec.Firmware.Boot = append(spec.Firmware.Boot, d.Name)
	}
	if overNetwork != "" {
		spec.Firmware.Boot = append(spec.Firmware.Boot, overNetwork)
		ts.Check(s.network.ServeBoot(filepath.Join(dir, "netboot.efi")))
	}
	spec.Disks = slices.Concat(first, spec.Disks, others)
	s.start(ts, spec)
}

// toolsVerb selects the orlopctl and the kubectl of a directory below ${VERSIONS}. Without an
// argument it selects the present ones again. A former orlopctl writes configurations that a former
// machine accepts.
func (s *story) toolsVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 0, 1, "tools [DIRECTORY]")
	s.tools = *binDir
	if len(args) == 1 {
		s.tools = filepath.Join(*versions, args[0], "bin")
	}
	s.note("tools %s", strings.Join(args, " "))
}

func (s *story) consoleVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 3, "console NAME REGEXP [DEADLINE]")
	deadline := 2 * time.Minute
	if len(args) == 3 {
		deadline = deadlineOf(ts, args[2])
	}
	s.waitConsole(ts, args[0], args[1], deadline)
}

func (s *story) fingerprintVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "fingerprint NAME")
	last := s.shown(ts, args[0], `machine identity (sha256:[0-9a-f]{64})`)
	ts.Setenv("FINGERPRINT_"+args[0], last)
	s.setContext(ts, args[0], "--fingerprint", last)
}

func (s *story) codeVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "code NAME")
	ts.Setenv("CODE_"+args[0], s.shown(ts, args[0], `orlop: pairing code ([0-9A-Z-]+)`))
}

// shown returns the match of the first group of an expression in the last matching line of a
// console.
func (s *story) shown(ts *testscript.TestScript, name, pattern string) string {
	all := regexp.MustCompile(pattern).FindAllStringSubmatch(s.machine(ts, name).Console().String(), -1)
	if len(all) == 0 {
		ts.Fatalf("machine %s has not shown %q yet; wait for it with console", name, pattern)
	}
	return all[len(all)-1][1]
}

func (s *story) trustVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "trust NAME SECRETS")
	var secrets struct {
		Machine struct {
			Cert string `json:"cert"`
		} `json:"machine"`
	}
	ts.Check(yaml.Unmarshal([]byte(ts.ReadFile(args[1])), &secrets))
	ca := ts.MkAbs("machine-ca.crt")
	ts.Check(os.WriteFile(ca, []byte(secrets.Machine.Cert), 0o600))
	s.setContext(ts, args[0], "--ca", ca, "--server-name", args[0])
}

// setContext makes orlopctl call a machine as the operator of the image.
func (s *story) setContext(ts *testscript.TestScript, name string, verify ...string) {
	args := append([]string{"config", "set", name, "--endpoint", "127.0.0.1:" + ts.Getenv("PORT_"+name+"_50000"),
		"--cert", filepath.Join(*operator, "admin.crt"), "--key", filepath.Join(*operator, "admin.key")}, verify...)
	ts.Check(ts.Exec(filepath.Join(s.tools, "orlopctl"), args...))
	s.note("orlopctl config set %s %s", name, strings.Join(verify, " "))
	s.current, s.verify = name, verify
}

// endpoint returns the endpoint that the story's orlopctl uses.
func (s *story) endpoint(ts *testscript.TestScript) client.Endpoint {
	cert, err := tls.LoadX509KeyPair(filepath.Join(*operator, "admin.crt"), filepath.Join(*operator, "admin.key"))
	ts.Check(err)
	e := client.Endpoint{Cert: cert, Address: "127.0.0.1:" + ts.Getenv("PORT_"+s.current+"_50000")}
	for i := 0; i+1 < len(s.verify); i += 2 {
		switch s.verify[i] {
		case "--fingerprint":
			e.Fingerprint = s.verify[i+1]
		case "--server-name":
			e.ServerName = s.verify[i+1]
		case "--ca":
			text, err := os.ReadFile(s.verify[i+1])
			ts.Check(err)
			e.CA = x509.NewCertPool()
			e.CA.AppendCertsFromPEM(text)
		}
	}
	return e
}

// client returns a connection to the endpoint.
func (s *story) client(ts *testscript.TestScript) *client.Client {
	e := s.endpoint(ts)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, e)
	ts.Check(err)
	return c
}

// program runs a user program and stores its output for the script.
func (s *story) program(name string) func(ts *testscript.TestScript, neg bool, args []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		began := time.Now()
		err := ts.Exec(filepath.Join(s.tools, name), s.timeouts(ts, args)...)
		s.note("%s %s (%.1fs)", name, strings.Join(args, " "), s.network.Clock().Since(began).Seconds())
		if neg && err == nil {
			ts.Fatalf("%s succeeded, and should not have", name)
		}
		if !neg && err != nil {
			ts.Fatalf("%s: %v", name, err)
		}
	}
}

// kubectl returns a kubectl command for a verb that works while it runs.
func kubectl(ctx context.Context, ts *testscript.TestScript, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(*binDir, "kubectl"), append([]string{"--kubeconfig", ts.Getenv("KUBECONFIG")}, args...)...)
}

// every is the polling interval of until.
const every = 500 * time.Millisecond

func (s *story) retryVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, false, args, 2, -1, "[!] retry DEADLINE orlopctl|kubectl ARGS")
	if args[1] != "orlopctl" && args[1] != "kubectl" {
		ts.Fatalf("retry: only orlopctl and kubectl can be tried again")
	}
	err := until(s.lasts(deadlineOf(ts, args[0])), func() error {
		err := ts.Exec(filepath.Join(s.tools, args[1]), args[2:]...)
		if neg && err == nil {
			return errors.New("it goes on working")
		}
		if neg {
			return nil
		}
		return err
	})
	s.note("%s: works %t", strings.Join(args[1:], " "), neg == (err != nil))
	if err != nil {
		ts.Fatalf("%s: not within %s: %v", args[1], args[0], err)
	}
}

// until calls f until it returns nil, or returns its last error at the deadline.
func until(deadline time.Duration, f func() error) error {
	end := time.After(deadline)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-end:
			return err
		}
	}
}

func (s *story) nocertVerb(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: nocert NAME")
	}
	c, err := tls.Dial("tcp", "127.0.0.1:"+ts.Getenv("PORT_"+args[0]+"_50000"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err == nil {
		// In TLS 1.3 the server rejects the client after the client's own handshake, so the first
		// read returns the error.
		c.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = c.Read(make([]byte, 1))
		c.Close()
	}
	s.note("without a certificate: %v", err)
	refused := err != nil && (strings.Contains(err.Error(), "certificate required") || strings.Contains(err.Error(), "bad certificate"))
	if neg != refused {
		ts.Fatalf("a caller without a certificate: %v", err)
	}
}

func (s *story) imageVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 2, "image FILE [NAME]")
	ts.Check(testimage.Write(context.Background(), ts.MkAbs(args[0]), append(args[1:], testImage)[0]))
}

func (s *story) addonArchiveVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, 3, "addon-archive FILE NAME YAML")
	artifact := ociarchive.Image{
		Name: args[1], ConfigType: "application/vnd.cncf.flux.config.v1+json",
		Layers: []ociarchive.Layer{{"/" + args[2]: {Mode: 0o644, Content: []byte(ts.ReadFile(args[2]))}}},
	}
	digest, err := artifact.Digest()
	ts.Check(err)
	out, err := os.Create(ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Check(errors.Join(ociarchive.Write(out, artifact), out.Close()))
	ts.Setenv("ARTIFACT", args[1][:strings.LastIndexByte(args[1], ':')]+"@"+digest)
}

func (s *story) portforwardVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, 3, "portforward TARGET PORT PATH")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := kubectl(ctx, ts, "port-forward", args[0], ":"+args[1])
	out := &lines{seen: cell.NewSignal()}
	cmd.Stdout, cmd.Stderr = out, out
	ts.Check(cmd.Start())
	defer func() { cancel(); cmd.Wait() }()
	re := regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)
	for {
		if m := re.FindStringSubmatch(out.String()); m != nil {
			r, err := (&http.Client{Timeout: 30 * time.Second}).Get("http://" + m[1] + args[2])
			ts.Check(err)
			defer r.Body.Close()
			_, err = io.Copy(ts.Stdout(), r.Body)
			ts.Check(err)
			s.note("port-forward to %s", args[0])
			return
		}
		select {
		case <-out.seen:
		case <-ctx.Done():
			ts.Fatalf("port-forward: no port within a minute: %s", out.String())
		}
	}
}

// lines collects a command's output and signals new output.
type lines struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	seen cell.Signal
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen.Wake()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// answerLimit bounds one request of outside, which uses a new connection.
const answerLimit = 5 * time.Second

func (s *story) powercutVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "powercut NAME")
	s.machine(ts, args[0]).PowerCut()
	s.note("power of %s is cut", args[0])
}

func (s *story) poweronVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "poweron NAME")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	m := s.machine(ts, args[0])
	s.seen[args[0]] = m.Console().Offset()
	ts.Check(m.PowerOn(ctx))
	s.note("machine %s is switched on again", args[0])
}

func (s *story) downVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 3, "down NAME [DEADLINE [REASON]]")
	deadline := 2 * time.Minute
	if len(args) > 1 {
		deadline = deadlineOf(ts, args[1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.lasts(deadline))
	defer cancel()
	exit, err := s.machine(ts, args[0]).Wait(ctx)
	if err != nil {
		ts.Fatalf("machine %s is still on after %v", args[0], deadline)
	}
	ts.Check(exit.Err())
	s.note("machine %s is off: %s", args[0], exit)
	if len(args) > 2 && exit.Reason != args[2] {
		ts.Fatalf("machine %s is off for another reason: %s", args[0], exit)
	}
}
