package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/orlop-os/orlop/orlopctl/exit"
)

// This file contains hints for commands of other tools: each hint names the corresponding commands
// of orlopctl.

// kubectlHint is the hint for a resource of Kubernetes. %s is the command of kubectl.
const kubectlHint = "that belongs to Kubernetes: `orlopctl kubeconfig` gives kubectl access, and `kubectl %s` shows it"

// otherCommands maps commands of other tools (talosctl, kubectl, kubeadm, systemd) to hints, which
// name the corresponding command of orlopctl.
var otherCommands = map[string]string{
	"apply":            "`orlopctl apply-config -f FILE` applies a machine's configuration; objects of Kubernetes are kubectl's, or an add-on's",
	"apply-machine":    "`orlopctl apply-config -f FILE`",
	"bootstrap":        "this step is not necessary: etcd is bootstrapped when the configuration of the control plane is applied (`orlopctl health` waits for it)",
	"init":             "this step is not necessary: a cluster starts when the configuration of its first machine is applied; `orlopctl gen config` writes it",
	"join":             "`orlopctl nodes add NAME` writes the configuration of a worker; apply that on the machine",
	"cgroups":          "`orlopctl get cgroups`",
	"containers":       "`orlopctl get processes` lists processes; containers of pods belong to Kubernetes: `orlopctl kubeconfig`, then `kubectl get pods -A`",
	"conformance":      "see docs/conformance.md",
	"copy":             "`orlopctl cat PATH` reads a file",
	"cp":               "`orlopctl cat PATH` reads a file",
	"read":             "`orlopctl cat PATH` reads a file",
	"list":             "`orlopctl ls PATH` lists a directory",
	"crashdump":        "`orlopctl support --out FILE --to RECIPIENT` collects everything; `orlopctl dmesg --crash` shows the kernel's last crash",
	"disks":            "`orlopctl get disks`",
	"smart":            "`orlopctl get wear`",
	"secureboot":       "`orlopctl get secure-boot`",
	"df":               "`orlopctl get filesystems`",
	"usage":            "`orlopctl get filesystems`",
	"du":               "`orlopctl get filesystems`",
	"mounts":           "`orlopctl get mounts`",
	"memory":           "`orlopctl get memory`",
	"free":             "`orlopctl get memory`",
	"processes":        "`orlopctl get processes`",
	"ps":               "`orlopctl get processes`",
	"top":              "`orlopctl dashboard`; `kubectl top` is Kubernetes'",
	"stats":            "`orlopctl get cgroups`",
	"edit":             "`orlopctl edit-config` changes the machine's configuration in an editor",
	"machineconfig":    "`orlopctl gen config` writes a configuration, and `orlopctl patch-config` changes it",
	"mc":               "`orlopctl show-config`",
	"patch":            "`orlopctl patch-config -p PATCH` changes the machine's configuration; objects of Kubernetes are kubectl's",
	"explain":          "`orlopctl docs config/reference` describes every field; fields of Kubernetes: `kubectl explain`",
	"image-default":    "`orlopctl image list`",
	"images":           "`orlopctl image list`",
	"pull":             "`orlopctl image import FILE` brings images; pods pull theirs by themselves",
	"load":             "`orlopctl image import FILE`",
	"interfaces":       "`orlopctl get network`",
	"addresses":        "`orlopctl get network`",
	"ip":               "`orlopctl get network`, `orlopctl get routes`",
	"routes":           "`orlopctl get routes`",
	"netstat":          "`orlopctl get network` shows links and addresses",
	"pcap":             "`orlopctl capture LINK`",
	"tcpdump":          "`orlopctl capture LINK`",
	"inspect":          "`orlopctl get` lists the topics",
	"members":          "`orlopctl etcd members`, `orlopctl nodes list`",
	"node":             "`orlopctl nodes`",
	"reset-node":       "`orlopctl reset`",
	"delete":           "`orlopctl nodes remove NAME` removes a worker, `orlopctl etcd remove MEMBER` a member of etcd; use kubectl for objects of Kubernetes",
	"cordon":           "`kubectl cordon` (`orlopctl kubeconfig` gives kubectl access)",
	"uncordon":         "`kubectl uncordon` (`orlopctl kubeconfig` gives kubectl access)",
	"exec":             "a machine has no shell; use `orlopctl ls`, `cat`, `get` and `logs`, and `kubectl exec` for pods",
	"ssh":              "a machine has no shell; use `orlopctl ls`, `cat`, `get` and `logs`",
	"shell":            "a machine has no shell; use `orlopctl ls`, `cat`, `get` and `logs`",
	"describe":         "`kubectl describe` (`orlopctl kubeconfig` gives kubectl access)",
	"restart":          "`orlopctl service restart NAME`, or `orlopctl reboot` for the machine",
	"stop":             "`orlopctl shutdown` for the machine",
	"start":            "`orlopctl cluster start` for a cluster in QEMU",
	"status":           "`orlopctl health`, `orlopctl services`",
	"svc":              "`orlopctl services`",
	"systemctl":        "`orlopctl services`, `orlopctl service restart NAME`",
	"journalctl":       "`orlopctl logs SERVICE`, `orlopctl events`",
	"log":              "`orlopctl logs SERVICE`",
	"poweroff":         "`orlopctl shutdown`",
	"halt":             "`orlopctl shutdown`",
	"time":             "`orlopctl get time`",
	"upgrade-k8s":      "Kubernetes is part of the system: `orlopctl upgrade` upgrades both",
	"rotate-ca":        "`orlopctl trust rotate-ca`",
	"certs":            "`orlopctl get certificates`",
	"token":            "`orlopctl nodes add NAME` writes the configuration of a worker with its ticket",
	"wipe":             "`orlopctl reset`",
	"meta":             "`orlopctl get` lists the topics",
	"install":          "`orlopctl apply-config` on a machine that runs from memory installs it (Machine.spec.install)",
	"kubectl":          "it is a separate program: `orlopctl kubeconfig` gives it access",
	"etcdctl":          "`orlopctl etcd`",
	"crictl":           "`orlopctl image list`, `orlopctl get processes`",
	"login":            "`orlopctl config set NAME` makes a context",
	"use-context":      "`orlopctl config use-context NAME`",
	"contexts":         "`orlopctl config contexts`",
	"config-patch":     "`orlopctl patch-config`",
	"validate-config":  "`orlopctl validate -f FILE`",
	"machine":          "`orlopctl get` lists the topics",
	"update":           "`orlopctl upgrade`",
	"bundle":           "`orlopctl support --out FILE --to RECIPIENT`",
	"sysctl":           "`orlopctl get sysctls`",
	"lsmod":            "`orlopctl get modules`",
	"lspci":            "`orlopctl get pci`",
	"lsblk":            "`orlopctl get disks`",
	"get-config":       "`orlopctl show-config`",
	"show":             "`orlopctl show-config`, `orlopctl get`",
	"create":           "`orlopctl cluster create` makes a cluster in QEMU; objects of Kubernetes are kubectl's",
	"run":              "pods are Kubernetes': `orlopctl kubeconfig`, then `kubectl run`",
	"port-forward":     "`kubectl port-forward` (`orlopctl kubeconfig` gives kubectl access)",
	"scale":            "`kubectl scale` (`orlopctl kubeconfig` gives kubectl access)",
	"rollout":          "`kubectl rollout` (`orlopctl kubeconfig` gives kubectl access); `orlopctl upgrade` with --nodes upgrades one machine after the other",
	"cluster-info":     "`orlopctl health`",
	"cluster-show":     "`orlopctl health`, `orlopctl nodes list`",
	"debug":            "use `orlopctl get`, `logs`, `capture` and `profile`, and `kubectl debug` for pods",
	"gen-config":       "`orlopctl gen config`",
	"generate":         "`orlopctl gen`",
	"kubeconfig-merge": "`orlopctl kubeconfig`",
}

// unknownWord matches cobra's message about an unknown command, because cobra has no error type for
// it.
var unknownWord = regexp.MustCompile(`^unknown command "([^"]+)" for "orlopctl"`)

// elsewhere returns the hint for an error about a command of another tool. It returns "" if there
// is no hint.
func elsewhere(err error) string {
	found := unknownWord.FindStringSubmatch(err.Error())
	if found == nil {
		return ""
	}
	word := strings.ToLower(found[1])
	if hint := otherCommands[word]; hint != "" {
		return hint
	}
	if name := kubernetesKind(word); name != "" {
		return fmt.Sprintf(kubectlHint, "get "+name)
	}
	return ""
}

// kubernetesKinds are the most common resources of Kubernetes, in the plural, with their short
// names.
var kubernetesKinds = map[string]string{
	"clusterroles": "", "clusterrolebindings": "", "componentstatuses": "cs", "configmaps": "cm", "cronjobs": "cj", "customresourcedefinitions": "crd", "daemonsets": "ds",
	"deployments": "deploy", "endpoints": "ep", "endpointslices": "", "horizontalpodautoscalers": "hpa", "ingresses": "ing", "jobs": "", "leases": "", "limitranges": "limits",
	"namespaces": "ns", "networkpolicies": "netpol", "nodes": "no", "persistentvolumeclaims": "pvc", "persistentvolumes": "pv", "poddisruptionbudgets": "pdb", "pods": "po",
	"priorityclasses": "pc", "replicasets": "rs", "resourcequotas": "quota", "rolebindings": "", "roles": "", "secrets": "", "serviceaccounts": "sa", "statefulsets": "sts",
	"storageclasses": "sc", "volumeattachments": "", "volumesnapshots": "vs", "validatingwebhookconfigurations": "", "mutatingwebhookconfigurations": "", "apiservices": "",
	"certificatesigningrequests": "csr", "runtimeclasses": "", "all": "",
}

// kubernetesKind returns the resource that a word names, in the plural. It returns "" for an
// unknown word. It ignores the text after a slash, a dot or a comma.
func kubernetesKind(word string) string {
	word, _, _ = strings.Cut(strings.ToLower(word), "/")
	word, _, _ = strings.Cut(word, ".")
	word, _, _ = strings.Cut(word, ",")
	for plural, short := range kubernetesKinds {
		singular := strings.TrimSuffix(plural, "s")
		if end, ok := strings.CutSuffix(plural, "ies"); ok {
			singular = end + "y"
		} else if end, ok := strings.CutSuffix(plural, "sses"); ok {
			singular = end + "ss"
		}
		if word != "" && slices.Contains([]string{plural, short, singular}, word) {
			return plural
		}
	}
	return ""
}

// otherTopics maps topics of talosctl's `get` to hints, which name the corresponding command of
// orlopctl.
var otherTopics = map[string]string{
	"addresses": "`orlopctl get network`", "links": "`orlopctl get network`", "hostname": "`orlopctl get network`", "resolvers": "`orlopctl get network`",
	"machineconfig": "`orlopctl show-config`", "mc": "`orlopctl show-config`", "config": "`orlopctl show-config`, `orlopctl get configuration`",
	"members": "`orlopctl etcd members`, `orlopctl nodes list`", "affiliates": "`orlopctl nodes list`", "identity": "`orlopctl get configuration`",
	"discoveredvolumes": "`orlopctl get disks`", "dv": "`orlopctl get disks`", "systemdisk": "`orlopctl get disks`", "blockdevices": "`orlopctl get disks`",
	"volumestatus": "`orlopctl get filesystems`", "mountstatus": "`orlopctl get mounts`", "timestatus": "`orlopctl get time`", "timeservers": "`orlopctl get time`",
	"version": "`orlopctl version`", "images": "`orlopctl image list`", "health": "`orlopctl health`", "events": "`orlopctl events`", "logs": "`orlopctl logs`",
	"staticpods": "`orlopctl services`", "kernelmodules": "`orlopctl get modules`", "kernelparamstatus": "`orlopctl get sysctls`", "extensions": "`orlopctl version`",
	"cpu": "`orlopctl get system`", "hardware": "`orlopctl get pci`, `orlopctl get system`", "systeminformation": "`orlopctl get system`", "firewall": "`orlopctl get nftables`",
}

// topicHint adds a hint to the machine's error about an unknown topic. It returns other errors
// without a change.
func topicHint(err error, topic string) error {
	if s, ok := exit.StatusOf(err); err == nil || !ok || s.Code() != codes.NotFound {
		return err
	}
	if hint := otherTopics[strings.ToLower(topic)]; hint != "" {
		return exit.WithHint(err, hint+" shows that")
	}
	if name := kubernetesKind(topic); name != "" {
		return exit.WithHint(err, fmt.Sprintf(kubectlHint, "get "+name))
	}
	return exit.WithHint(err, "`orlopctl get` lists the topics")
}

// fileOrFlag checks the arguments of a command that reads a single file. The file can be an
// argument, which fileOrFlag stores in --file, or --file itself.
func fileOrFlag(c *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case len(args) > 1:
		return fmt.Errorf("%s: expected one file, found %d", c.Name(), len(args))
	case c.Flags().Changed("file"):
		return fmt.Errorf("%s: expected one file, found the argument %q and --file", c.Name(), args[0])
	case strings.ContainsAny(args[0], "{\n"):
		return fmt.Errorf("%s: %q is not the name of a file; --patch takes the patch itself", c.Name(), short(args[0]))
	}
	return c.Flags().Set("file", args[0])
}

// short returns the first 16 bytes of a text for a message, because the rest may be a secret.
func short(text string) string {
	const most = 16
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
