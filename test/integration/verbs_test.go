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

// The verbs of the stories, in addition to the verbs of testscript (stdout, stderr, cmp, grep, …).
//
// An argument PATCH is a file that the verb writes: a patch for the configuration of a machine. All
// times in a story are in the time of the machines. This time differs from the time of this
// computer after
//
//	dilate N
//	    comes before the first machine of a story: time passes N times more slowly for the
//	    machines (vm.Clock)
//
// The other verbs are
//
//	router MODE
//	    comes before the first machine of a story: the network has IPv6 and no IPv4. MODE says how
//	    its router configures machines: advertised (all settings by router advertisements),
//	    stateless (addresses by router advertisements, other settings by DHCPv6), stateful
//	    (addresses and other settings by DHCPv6)
//	machine NAME [key=value…]
//	    make a machine and switch it on; machineVerb lists the keys
//	console NAME REGEXP [DEADLINE]
//	    wait for a line on the console of the machine, after the last matched line
//	fingerprint NAME
//	    read the fingerprint of the machine's key from the console ($FINGERPRINT_NAME); orlopctl
//	    then verifies the machine by the fingerprint
//	code NAME
//	    read the pairing code of the machine from the console ($CODE_NAME)
//	trust NAME SECRETS
//	    from now on, orlopctl verifies the machine by the machine CA of the cluster
//	orlopctl ARGS, kubectl ARGS
//	    run the program as a user would; its output goes to stdout and stderr
//	retry DEADLINE VERB ARGS
//	    repeat orlopctl or kubectl until it succeeds, or with a ! until it fails
//	door NAME
//	    check that the management API of the machine rejects unauthorized calls, and measure
//	    authorized calls; the results are in build/api.json
//	nocert NAME
//	    connect to the machine without a certificate; the API must accept the connection, or with
//	    a ! reject it
//	image FILE [NAME]
//	    build the test image as an OCI archive; the default NAME is test.orlop.dev/testpod:1
//	addon-archive FILE NAME YAML
//	    write an OCI archive of artifact NAME (with a tag) that holds the file YAML, in the form
//	    of `flux push artifact`; $ARTIFACT becomes the name of the artifact with the digest
//	cluster NAME [KEY=VALUE… | KIND.FIELD YAML]
//	    make a machine with keys of the verb machine, create a cluster on it, and import the test
//	    image. KIND.FIELD YAML changes the machine's configuration like the verb set. orlopctl and
//	    kubectl use the cluster from then on
//	portforward TARGET PORT PATH
//	    run kubectl port-forward, send one HTTP request through it, and print the answer
//	outside DEADLINE REGEXP URL
//	    fetch the URL repeatedly from a host in the network until the answer matches, or with a !
//	    until it does not match
//	ports NAME PORT…
//	    scan all TCP ports of the machine from the network; exactly these ports must be open
//	capture
//	    check that no packet went to an address outside the closed network since the network was
//	    created
//	kill-services NAME [SERVICE…]
//	    kill services of the machine with SIGKILL through the API (default: all); the process of
//	    each service must run again within 10 s, and then become ready
//	follow POD WATCHER
//	    read the log of POD with kubectl logs -f while the pod writes, until the kubelet has
//	    rotated the log twice; each line must occur once and in order. WATCHER is a pod in
//	    kube-system that mounts the log files at /logs, so the verb sees the rotations
//	issuer DOCUMENTS EXPRESSION KUBECONFIG
//	    start an issuer of tokens in the network. The verb changes the Cluster document in
//	    DOCUMENTS, so the cluster trusts the issuer and derives user names by EXPRESSION. The verb
//	    writes KUBECONFIG for the user dora of the issuer
//	pod-token NODE KUBECONFIG
//	    write KUBECONFIG with the token of a pod of the default namespace on NODE
//	refused-calls N
//	    make N calls as the operator, which must fail, sixteen at a time
//	cut-stream NAME
//	    cut the power of the machine during a packet capture on the machine
//	kubelet NAME PATH STATUS [KUBECONFIG]
//	    call the kubelet of the machine, with KUBECONFIG or anonymously, until it answers with
//	    this HTTP status
//	plug NAME DISK MIB, unplug NAME DISK
//	    add a disk to the SCSI controller of the machine, or remove the disk
//	disk NAME FROM
//	    while the machine is off, replace the content of its first disk. FROM is the name of a
//	    machine that is off (the content becomes a copy of its system disk), "image" or "blank"
//	swap NAME DISK
//	    while the machine is off, exchange the disk with a blank disk of the same size; the next
//	    swap restores the first disk
//	settled SERVICE DURATION
//	    wait until the service has run for this duration
//	writes start|check, writes stop [resumed]
//	    start: write ConfigMaps, at most 20 a second. check: all writes that were acknowledged
//	    since the first start must exist. stop: end the writes; with resumed, some write must have
//	    failed, and a later write must have been acknowledged
//	reads KUBECONFIG, reads stop
//	    read from the API repeatedly, each time over a new connection. stop: end the reads; none
//	    may have failed
//	history start MACHINE…, history next, history stop
//	    run clients that read and write registers at these API servers; next gives the clients new
//	    registers; stop checks that the history is linearizable: no acknowledged write is lost
//	tools [DIRECTORY]
//	    use the orlopctl and the kubectl of a directory below ${VERSIONS}; without DIRECTORY, use
//	    the programs of this version again
//	client start ADDRESS, client stop
//	    write and read at ADDRESS, five requests a second. A failed request is made a second time.
//	    stop: end the requests; no second attempt may have failed, and every acknowledged write
//	    must exist
//	network cut|join NAME
//	    disconnect a machine from the network, or connect it again
//	cable pull|plug NAME N
//	    unplug the cable of the N-th NIC of the machine (0 is the first), which then has no
//	    carrier, or plug the cable in again
//	lldp NAME|off
//	    the switch announces itself as NAME on all ports (LLDP), or ends the announcements
//	bgp start ASN
//	    the gateway is a BGP router for every machine. The connections of the verbs outside and
//	    client use the routes of this router. If several machines announce an address, the
//	    connections go to these machines in turn
//	bgp DEADLINE ADDRESS [NAME…]
//	    wait until exactly these machines announce the address
//	trunk NAME UNTAGGED [ID…]
//	    set the VLANs of the port of NAME (a machine, NAME/N for its N-th NIC, or gateway): frames
//	    of VLAN UNTAGGED have no tag on the port (0: no such VLAN), and frames of the VLANs ID
//	    have a tag
//	bundle NAME…
//	    the switch aggregates these ports by LACP
//	leader
//	    $LEADER becomes the machine with the leader of etcd, $FOLLOWER another machine
//	powercut NAME, poweron NAME
//	    operate the power switch of the machine
//	hang NAME
//	    stop the processors of the machine, until its power is cut
//	bmc start FILE NAME…
//	    start a host in the network that is the Redfish management controller of these machines;
//	    FILE gets their Secrets, NAME-power
//	bmc did NAME
//	    print the operations of the power switch of the machine: on, off, button, restart
//	damage NAME WHAT
//	    damage a machine that is off; "flip PARTITION": one byte of the partition; "zero
//	    PARTITION": the beginning and the end of the partition, which is blank afterwards; "plain
//	    PARTITION": replace the partition by an empty file system with its label; "fill MIB": fill
//	    its ESP until only MIB MiB are free; "variables": erase the variables of its firmware;
//	    "tpm": replace its TPM by another one; "disk": replace its disk by a new disk with the
//	    image
//	forge-ticket DOCUMENTS NAME
//	    replace the ticket in DOCUMENTS by a ticket for NAME with the signature of an unknown CA
//	operators PATCH CA…
//	    write the file PATCH: a patch with which a machine trusts exactly the operators of the
//	    CAs in these files
//	leaks SECRETS FILE…
//	    at least one file must contain a private key or another secret of SECRETS; with a !, no
//	    file may contain one
//	set DOCUMENTS KIND.FIELD[.FIELD…] YAML
//	    set a field of the spec in the document of this kind; null removes the field
//	cut-install NAME DOCUMENTS OPERATION
//	    install, and cut the power during this operation of the installation
//	cut-upgrade NAME BUNDLE OPERATION
//	    upload a bundle, and cut the power during this operation of the upgrade
//	abandon BUNDLE OPERATION MIB
//	    run orlopctl upgrade -f, and kill orlopctl when the machine has processed MIB MiB in
//	    this operation
//	at-once NAME NAME orlopctl ARGS
//	    call two machines at the same time. Exactly one call must succeed: $FIRST becomes the
//	    machine of this call, and $SECOND the other machine. The error of the other call goes to
//	    stderr
//	registry BUNDLE CA
//	    start a registry ($REGISTRY) with a bundle as orlop/test:1; the file CA gets the CA of the
//	    registry
//	releases PATCH BUNDLE…
//	    start a registry ($REGISTRY) with bundles as orlop/test:1, orlop/test:2 and so on, with
//	    the digests $DIGEST_1, $DIGEST_2 and so on; PATCH makes a machine use the registry;
//	    $VERSION is the version of the image
//	extensions PATCH NAME…
//	    start a registry with the extensions below ${VERSIONS}/extensions with these names, such
//	    as gvisor/gvisor; $EXTENSION_1, $EXTENSION_2 and so on are their references; PATCH makes a
//	    machine use the registry
//	mirror PATCH NAME
//	    start a registry that has the test image NAME below a path, and requires a user and a
//	    password. With PATCH, a machine uses it as the mirror of the registry that NAME begins
//	    with
//	signed PATCH RULES ARCHIVE NAME
//	    start a registry with the test image as NAME:unsigned, NAME:wrong (signed by another key)
//	    and NAME:good; ARCHIVE has NAME:imported with its signature. With PATCH, a machine uses
//	    it as the mirror of the registry that NAME begins with. RULES requires signatures for
//	    images of that registry, and no signature for the test image
//	secure start PATCH
//	    start the host secure.site.example in the network. It is a DNS server over TLS that
//	    resolves only its own name, and a time server with NTS; PATCH makes a machine use both
//	secure silent, secure honest
//	    silent: the DNS server of the host answers no query; honest: it answers again
//	bucket start PATCH KEY
//	    start an object store (S3), and write a new age key to the file KEY; PATCH makes a machine
//	    upload its snapshots to the store, encrypted for this key
//	bucket newest FILE KEY
//	    write the newest object of the store to FILE; the object must be a snapshot that the key in
//	    the file KEY decrypts
//	receiver start FILE
//	    start a host in the network that receives JSON lines over TLS from machines of the
//	    cluster; FILE becomes the patch that ships logs to the host, as receiver archive
//	receiver otlp FILE
//	    the same over OTLP, also with the logs of pods
//	receiver kill, receiver again
//	    stop the receiver, which loses the data in its sockets, or start it again
//	receiver has DEADLINE REGEXP
//	    wait until a matching line has arrived
//	receiver pod DEADLINE POD TEXT NUMBER
//	    wait until the receiver has the lines "TEXT 1" to "TEXT NUMBER" of a pod, in order
//	receiver audit DEADLINE
//	    wait until the receiver has the whole audit log, in order, and verify the chain of its
//	    records
//	receiver requests DEADLINE REGEXP
//	    wait until a line of the audit log of Kubernetes matches, and verify the chain of all
//	    lines of this log
//	proxy start PATCH
//	    start a host in the network that is an HTTP proxy with a user and a password; PATCH makes
//	    a machine use the proxy
//	proxy used DEADLINE REGEXP
//	    wait until a client has connected through the proxy to a matching host:port
//	transit start PATCH
//	    start a host in the network that is a key manager (Transit of Vault); PATCH makes the API
//	    server use the key manager
//	transit rotate, transit seal, transit unseal
//	    rotate: the key of the key manager gets a new version; seal: the key manager answers no
//	    request; unseal: it answers requests again
//	down NAME [DEADLINE [REASON]]
//	    wait until the machine has powered off; REASON is the reason that QEMU must report
//	    (guest-shutdown, guest-reset)
//
// The verbs for failures are in bad_test.go:
//
//	dhcp on|off, ntp on|off
//	    the DHCP or NTP server of the closed network answers, or does not answer
//	exits STATUS orlopctl ARGS
//	    check that orlopctl ends with this status
//	await DEADLINE REGEXP orlopctl|kubectl ARGS
//	    repeat the command until its output matches, or with a ! until it does not match
//	refuses NAME FILE
//	    send documents to the machine without orlopctl, which would reject them; the machine must
//	    reject them too; prints the error
//	expired DIR
//	    make an expired operator certificate (client.crt, client.key)
//	button NAME
//	    press the power button of the machine
//	unchanged NAME
//	    check that the disks of the machine have exactly the content from their creation
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
		ts.Fatalf("the verb cannot be negated by a !; usage: %s", usage)
	}
	if len(args) < least || (most >= 0 && len(args) > most) {
		ts.Fatalf("usage: %s", usage)
	}
}

// lasts converts a duration in the time of the machines to the time of this computer.
func (s *story) lasts(d time.Duration) time.Duration { return s.network.Clock().Outside(d) }

// timeouts returns the arguments of a program, with the value of --timeout converted to the time of
// this computer.
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

// machineVerb makes a machine and switches it on. Each key changes the default machine, which has 4
// GiB of memory and a disk of 8 GiB with the image:
//
//	memory=MIB    size of the memory
//	cpus=N        number of processors; the default is 2
//	disk=MIB      size of the disk, at least the size of the image
//	profile=NAME  the image of another profile
//	secureboot    firmware with Secure Boot, in setup mode; with secureboot=NAME, the firmware has
//	              the keys that machine NAME has enrolled. Machine NAME must be off
//	tpm           a TPM 2.0, which keeps its state over power cycles of the machine
//	uuid=UUID     UUID of the machine in its firmware and at its management controller
//	blank=MIB,…   blank disks of these sizes (disk0, disk1, …) instead of the disk with the image
//	more=MIB,…    further blank disks of these sizes (more0, more1, …)
//	cdrom=FILE    this artifact of the image is a CD in the machine's drive; without blank=, the
//	              machine has no disk
//	usb=FILE      like cdrom=, but as a USB stick
//	netboot=HOW   the machine boots netboot.efi over the network: pxe or http
//	kernel=FILE   QEMU passes this boot image to the firmware, which has no other boot option
//	loader=NAME   the firmware boots another boot loader, ipxe or grub, which boots netboot.efi
//	first=MIB     a further blank disk, before the others in the kernel's order; it is not in the
//	              boot order of the firmware
//	foreign       a foreign partition takes all the space after the partitions of the image
//	flip          one byte of ROOT-A is changed
//	rtc=TIME      time of the hardware clock at power-on (RFC 3339)
//	nonic         no network card
//	nics=N        this number of network cards
//	noreboot      QEMU ends when the machine resets
//	scsi          a SCSI controller to which the verb plug can add a disk
//	config=FILE   a further disk, labeled ORLOPCFG, with FILE as machine.yaml
//	cidata=FILE   a further disk, labeled CIDATA, with FILE as user-data
//	iso=FILE      like cidata=, but as a CD image of ISO level 4, labeled cidata
//	photos=MIB    a further disk of this size, with a user's file system
//	member=MIB    a further disk of this size, with the metadata of a RAID member at its end
func (s *story) machineVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, -1, "machine NAME [key=value…]")
	spec := vm.MachineSpec{Name: args[0], MemoryMiB: 4096, CPUs: 2, Watchdog: true}
	// The boot image must not pass this argument to its kernel (docs/decisions/0089).
	spec.QEMU.Args = []string{"-smbios", "type=11,value=io.systemd.stub.kernel-cmdline-extra=from-smbios"}
	dir, size := *imageDir, int64(8192)
	var blank, media []vm.Disk
	var overNetwork, kernel, loader string
	var first []vm.Disk
	var damage func(file string) error
	var others []vm.Disk // not in the boot order of the firmware
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
		case "uuid":
			spec.Identity.UUID = value
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
	case len(blank)+len(media) == 0 && overNetwork == "": // a disk has the image
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
// argument it selects the programs of this version again. For a machine with a former release, a
// story needs the programs of that release: their configurations are valid for the machine.
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

// shown returns the first group of the pattern in the last matching line on the console of the
// machine.
func (s *story) shown(ts *testscript.TestScript, name, pattern string) string {
	all := regexp.MustCompile(pattern).FindAllStringSubmatch(s.machine(ts, name).Console().String(), -1)
	if len(all) == 0 {
		ts.Fatalf("the console of machine %s has no line that matches %q; wait for the line with the verb console", name, pattern)
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

// setContext makes orlopctl call the machine, as the operator that the image trusts. The parameter
// verify has the flags with which orlopctl verifies the machine.
func (s *story) setContext(ts *testscript.TestScript, name string, verify ...string) {
	args := append([]string{"config", "set", name, "--endpoint", "127.0.0.1:" + ts.Getenv("PORT_"+name+"_50000"),
		"--cert", filepath.Join(*operator, "admin.crt"), "--key", filepath.Join(*operator, "admin.key")}, verify...)
	ts.Check(ts.Exec(filepath.Join(s.tools, "orlopctl"), args...))
	s.note("orlopctl config set %s %s", name, strings.Join(verify, " "))
	s.current, s.verify = name, verify
}

// endpoint returns the endpoint of the machine that orlopctl calls in this story.
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

// client connects to the machine that orlopctl calls in this story.
func (s *story) client(ts *testscript.TestScript) *client.Client {
	e := s.endpoint(ts)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, e)
	ts.Check(err)
	return c
}

// program returns a verb that runs a program with the arguments, and stores its output for the
// script.
func (s *story) program(name string) func(ts *testscript.TestScript, neg bool, args []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		began := time.Now()
		err := ts.Exec(filepath.Join(s.tools, name), s.timeouts(ts, args)...)
		s.note("%s %s (%.1fs)", name, strings.Join(args, " "), s.network.Clock().Since(began).Seconds())
		if neg && err == nil {
			ts.Fatalf("%s succeeded, but must fail", name)
		}
		if !neg && err != nil {
			ts.Fatalf("%s: %v", name, err)
		}
	}
}

// kubectl returns a kubectl command that is not started yet, so a verb can do other work while the
// command runs.
func kubectl(ctx context.Context, ts *testscript.TestScript, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(*binDir, "kubectl"), append([]string{"--kubeconfig", ts.Getenv("KUBECONFIG")}, args...)...)
}

// every is the interval between two calls of a function by until.
const every = 500 * time.Millisecond

func (s *story) retryVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, false, args, 2, -1, "[!] retry DEADLINE orlopctl|kubectl ARGS")
	if args[1] != "orlopctl" && args[1] != "kubectl" {
		ts.Fatalf("retry: the command must be orlopctl or kubectl")
	}
	err := until(s.lasts(deadlineOf(ts, args[0])), func() error {
		err := ts.Exec(filepath.Join(s.tools, args[1]), args[2:]...)
		if neg && err == nil {
			return errors.New("the command still succeeds")
		}
		if neg {
			return nil
		}
		return err
	})
	s.note("%s: works %t", strings.Join(args[1:], " "), neg == (err != nil))
	if err != nil {
		ts.Fatalf("retry: %s does not have the expected result within %s: %v", args[1], args[0], err)
	}
}

// The function until calls f repeatedly until f returns nil. At the deadline it returns the last
// error of f.
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
		// In TLS 1.3, the handshake of the client ends before the server verifies the certificate
		// of the client. The first read therefore returns the error.
		c.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = c.Read(make([]byte, 1))
		c.Close()
	}
	s.note("without a certificate: %v", err)
	refused := err != nil && (strings.Contains(err.Error(), "certificate required") || strings.Contains(err.Error(), "bad certificate"))
	if neg != refused {
		ts.Fatalf("unexpected result of a connection without a certificate: %v", err)
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
			ts.Fatalf("port-forward: kubectl did not print a port within a minute: %s", out.String())
		}
	}
}

// lines collects the output of a command, and signals new output.
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

// answerLimit is the deadline of one request of the verb outside, which uses a new connection.
const answerLimit = 5 * time.Second
