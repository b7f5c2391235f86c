package transition

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kernel/sysctl"
)

const mib = 1 << 20

// MinMemory is the minimum memory of a Kubernetes node, in bytes. An idle control-plane machine
// with its kernel uses about half of it.
const MinMemory = 1400 * mib

// CheckMachine rejects a configuration that this machine cannot run at present.
func CheckMachine(next *config.Config, f Machine) Problems {
	if f.NoStorage != "" && !f.InMemory && !next.Machine.Spec.Disk.WipeForeign {
		return problem("", "no disk to store it on: "+f.NoStorage, "")
	}
	if problems := checkMemorySysctls(next.Machine.Spec.Sysctls, f.Memory); len(problems) > 0 {
		return problems
	}
	if problems := checkParts(next, f.Parts); len(problems) > 0 {
		return problems
	}
	if next.Cluster == nil {
		return nil
	}
	if f.Memory < MinMemory {
		return problem("", fmt.Sprintf("memory: %d MiB are too little for Kubernetes", f.Memory/mib), fmt.Sprintf("give the machine at least %d MiB", MinMemory/mib))
	}
	if problems := checkReserved(next.Machine.Spec.Reserved, f); len(problems) > 0 {
		return problems
	}
	if problems := checkEviction(next.Cluster.Spec.Kubernetes.Kubelet.Eviction.Hard.MemoryAvailable, next.Machine.Spec.Reserved.Memory, f.Memory); len(problems) > 0 {
		return problems
	}
	if problems := checkPodRoutes(next, f.Addresses); len(problems) > 0 {
		return problems
	}
	if f.CAs != nil {
		return Problems{split(f.CAs.Error(), "")}
	}
	return nil
}

// checkParts rejects a configuration that omits the volume of a part of DATA, because the data of
// this part are on the volume. parts maps each such part to the name of its volume.
func checkParts(next *config.Config, parts map[config.VolumeUse]string) Problems {
	for _, use := range slices.Sorted(maps.Keys(parts)) {
		is := func(v config.Volume) bool { return v.Metadata.Name == parts[use] && v.Spec.Use == use }
		if !slices.ContainsFunc(next.Volumes, is) {
			return problem(config.VolumePath(parts[use]), fmt.Sprintf("%s of this machine is on this volume, and data are not moved", use),
				"keep the document, or reset the machine (orlopctl reset --wipe all)")
		}
	}
	return nil
}

// hugePage is the size of a page of vm.nr_hugepages, in bytes, on x86-64 and on arm64 with 4-KiB
// pages.
const hugePage = 2 * mib

// memorySysctls are the kernel parameters that take memory from the system. unit is the number of
// bytes that each unit of a value takes. For vm.min_free_kbytes this is 1.5 KiB, because the kernel
// begins to reclaim memory at 1.5 times this value (__setup_per_zone_wmarks in mm/page_alloc.c).
// For the connection table, the kernel allocates a pointer for each bucket at once.
var memorySysctls = []struct {
	name string
	unit int64
}{{"vm.nr_hugepages", hugePage}, {"vm.nr_hugepages_mempolicy", hugePage}, {"vm.min_free_kbytes", 1024 * 3 / 2}, {"net.netfilter.nf_conntrack_buckets", 8}}

// checkMemorySysctls rejects kernel parameters that leave too little memory for the system, because
// the kernel would then kill processes of the system at each boot. Half of MinMemory has to remain,
// or half of the machine's memory if the machine has less than MinMemory. The check is skipped if
// memory, in bytes, is unknown (0).
func checkMemorySysctls(sysctls map[string]string, memory int64) Problems {
	left := memory
	for _, p := range memorySysctls {
		value, set := sysctls[p.name]
		if !set || memory <= 0 {
			continue
		}
		n, err := sysctl.Number(value)
		if err != nil {
			return problem(fmt.Sprintf("Machine.spec.sysctls[%q]", p.name), err.Error(), "")
		}
		// A value that takes more than the memory is reduced to slightly more than the memory, so
		// the product does not overflow.
		taken := int64(min(n, uint64(memory/p.unit)+1)) * p.unit
		if left -= taken; left < min(MinMemory/2, memory/2) {
			return problem(fmt.Sprintf("Machine.spec.sysctls[%q]", p.name),
				fmt.Sprintf("with %s, %d of %d MiB of the machine's memory would remain for the system and its pods", strings.TrimSpace(value), max(left, 0)/mib, memory/mib),
				fmt.Sprintf("leave at least %d MiB", min(MinMemory/2, memory/2)/mib))
		}
	}
	return nil
}

// checkReserved rejects reservations for the system that leave nothing for pods, because the
// kubelet would not start.
func checkReserved(r config.Reserved, has Machine) Problems {
	if limit := has.Memory / 2; int64(r.Memory) > limit {
		return problem("Machine.spec.reserved.memory", fmt.Sprintf("%s are more than half of the machine's %d MiB", r.Memory, has.Memory/mib), "reserve less")
	}
	if all := int64(has.CPUs) * 1000; int64(r.CPU) >= all {
		return problem("Machine.spec.reserved.cpu", fmt.Sprintf("%s are all of the machine's %d processors", r.CPU, has.CPUs), "reserve less")
	}
	switch size, highest := r.CPUs.Bounds(); {
	case highest >= has.CPUs:
		return problem("Machine.spec.reserved.cpus", fmt.Sprintf("the machine has no processor %d", highest), fmt.Sprintf("name processors from 0 to %d", has.CPUs-1))
	case size >= has.CPUs:
		return problem("Machine.spec.reserved.cpus", fmt.Sprintf("%s are all of the machine's %d processors", r.CPUs, has.CPUs), "reserve less")
	}
	return nil
}

// checkEviction rejects a threshold of free memory that, together with the reserved memory, leaves
// nothing for pods. The kubelet subtracts both from the machine's memory and does not start if the
// result is negative. A percentage cannot cause this: it is at most 50%, and checkReserved has
// limited reserved to half of the memory.
func checkEviction(t config.Threshold, reserved config.Bytes, memory int64) Problems {
	if int64(t.Amount) < memory-int64(reserved) {
		return nil
	}
	return problem("Cluster.spec.kubernetes.kubelet.eviction.hard.memoryAvailable",
		fmt.Sprintf("%s and Machine.spec.reserved.memory, %s, are all of the machine's %d MiB", t, reserved, memory/mib), "lower the threshold")
}

// checkPodRoutes rejects IPv6 pod networks without encapsulation if the machine has no IPv6 address
// and next configures none. Other machines need such an address as the next hop. Without it, they
// could not reach the pods of this machine at all, not even by IPv4. have contains the present
// addresses; if it is empty, they are unknown, and the check is skipped.
func checkPodRoutes(next *config.Config, have []netip.Addr) Problems {
	networks := next.Cluster.Spec.Networks
	six := func(p netip.Prefix) bool { return p.Addr().Is6() && p.Addr().IsGlobalUnicast() }
	configured := func(l config.Link) bool { return slices.ContainsFunc(l.Addresses, six) }
	if networks.Encapsulation != config.EncapsulationNone || !slices.ContainsFunc(networks.Pods, six) || len(have) == 0 ||
		slices.ContainsFunc(have, netip.Addr.Is6) || slices.ContainsFunc(next.Network.Spec.Links, configured) {
		return nil
	}
	return problem("Cluster.spec.networks.encapsulation",
		"with none, other machines route to this machine's pods by its own addresses, and it has no IPv6 address for its IPv6 pods",
		"add one in Network.spec.links (addresses), or use wireguard or vxlan")
}

// Missing returns one line for each link, kernel module and kernel parameter of the next
// configuration that the machine lacks, and for each new link with a name that is taken. A
// configuration with a wrong name usually leaves the machine without an address. Links of the
// active configuration are skipped, because a failed network card must not prevent other changes.
func (f Hardware) Missing(next *config.Config) (lines []string) {
	has := "it has " + strings.Join(f.PresentLinks, ", ")
	if len(f.PresentLinks) == 0 {
		has = "it has no Ethernet link"
	}
	for i, l := range next.Network.Spec.Links {
		if l.Definition() != "" && slices.Contains(f.TakenLinks, l.Name) {
			lines = append(lines, fmt.Sprintf("Network.spec.links[%d].name: this machine has another link %s, which the system did not create; choose another name", i, l.Name))
		}
		for _, name := range hardware(next, i) {
			if slices.Contains(f.MissingLinks, name) && !slices.Contains(f.KnownLinks, name) {
				lines = append(lines, fmt.Sprintf("Network.spec.links[%d]: this machine has no link %s; %s", i, name, has))
			}
		}
	}
	for i, r := range next.Network.Spec.Routes {
		for j, h := range r.NextHops {
			if slices.Contains(f.MissingLinks, h.Link) && !slices.Contains(f.KnownLinks, h.Link) {
				lines = append(lines, fmt.Sprintf("Network.spec.routes[%d].nextHops[%d].link: this machine has no link %s; %s", i, j, h.Link, has))
			}
		}
	}
	for _, u := range f.Unusable {
		lines = append(lines, "Machine.spec."+u)
	}
	return lines
}

// LinkSelectors returns the selectors of the hardware links that a configuration (nil for none)
// needs. The selector of a hardware link is its name, MAC or match. For a created link and for a
// route with next hops, the result has the selectors of their hardware links.
func LinkSelectors(c *config.Config) (selectors []string) {
	if c == nil {
		return nil
	}
	for i := range c.Network.Spec.Links {
		selectors = append(selectors, hardware(c, i)...)
	}
	for _, r := range c.Network.Spec.Routes {
		for _, h := range r.NextHops {
			selectors = append(selectors, h.Link)
		}
	}
	return selectors
}

// hardware returns the selectors of hardware in entry i of the links.
func hardware(c *config.Config, i int) (selectors []string) {
	l := &c.Network.Spec.Links[i]
	switch {
	case l.Match != nil:
		return []string{l.Match.String()}
	case l.Definition() == "":
		return []string{cmp.Or(l.Name, string(l.MAC))}
	}
	for _, part := range l.Parts() {
		if !slices.ContainsFunc(c.Network.Spec.Links, func(o config.Link) bool { return o.Name == part && o.Definition() != "" }) {
			selectors = append(selectors, part)
		}
	}
	return selectors
}
