package host

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/pkg/service/exposition"
)

// isPodDevice reports whether a network device of the host is connected to a pod.
func isPodDevice(name string) bool { return strings.HasPrefix(name, "veth") }

func (r *reader) netdev() error {
	all, err := r.fs.NetDev()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		d := all[name]
		if isPodDevice(d.Name) {
			continue
		}
		for _, c := range []struct {
			name  string
			value uint64
		}{
			{"receive_bytes", d.RxBytes}, {"receive_packets", d.RxPackets}, {"receive_errs", d.RxErrors}, {"receive_drop", d.RxDropped},
			{"receive_fifo", d.RxFIFO}, {"receive_frame", d.RxFrame}, {"receive_compressed", d.RxCompressed}, {"receive_multicast", d.RxMulticast},
			{"transmit_bytes", d.TxBytes}, {"transmit_packets", d.TxPackets}, {"transmit_errs", d.TxErrors}, {"transmit_drop", d.TxDropped},
			{"transmit_fifo", d.TxFIFO}, {"transmit_colls", d.TxCollisions}, {"transmit_carrier", d.TxCarrier}, {"transmit_compressed", d.TxCompressed},
		} {
			r.Counter("node_network_"+c.name+"_total", "Network device statistic "+c.name+".", float64(c.value), "device", d.Name)
		}
	}
	return nil
}

func (r *reader) netclass() error {
	devices, err := r.devices()
	if err != nil {
		return err
	}
	names, err := devices.NetClassDevices()
	if err != nil {
		return err
	}
	for _, name := range names {
		if isPodDevice(name) {
			continue
		}
		d, err := devices.NetClassByIface(name)
		if errors.Is(err, fs.ErrNotExist) { // the device was removed after the list was read
			continue
		}
		if err != nil {
			return err
		}
		r.Gauge("node_network_up", "Value is 1 if operstate is 'up', 0 otherwise.", exposition.Number(d.OperState == "up"), "device", name)
		if d.MTU != nil {
			r.Gauge("node_network_mtu_bytes", "Network device property: mtu_bytes", float64(*d.MTU), "device", name)
		}
		if d.Speed != nil && *d.Speed >= 0 { // -1 means that the speed is unknown
			r.Gauge("node_network_speed_bytes", "Network device property: speed_bytes", float64(*d.Speed)*1e6/8, "device", name)
		}
	}
	return nil
}

// netstatFields matches the fields that node_exporter selects by default.
var netstatFields = regexp.MustCompile(`^(.*_(InErrors|InErrs)|Ip_Forwarding|Ip(6|Ext)_(InOctets|OutOctets)|Icmp6?_(InMsgs|OutMsgs)|TcpExt_(Listen.*|Syncookies.*|TCPSynRetrans|TCPTimeouts|TCPOFOQueue|TCPRcvQDrop)|Tcp_(ActiveOpens|InSegs|OutSegs|OutRsts|PassiveOpens|RetransSegs|CurrEstab)|Udp6?_(InDatagrams|OutDatagrams|NoPorts|RcvbufErrors|SndbufErrors))$`)

// netstat reads files with pairs of lines: first a protocol with the names of its fields, then the
// protocol with their values.
func (r *reader) netstat() error {
	var names []string
	read := func(fields []string) error {
		if names == nil {
			names = fields
			return nil
		}
		if len(names) != len(fields) || names[0] != fields[0] {
			return fmt.Errorf("the lines of %q do not match", names[0])
		}
		for i, field := range names[1:] {
			if err := r.netstatField(strings.TrimSuffix(names[0], ":")+"_"+field, fields[i+1]); err != nil {
				return err
			}
		}
		names = nil
		return nil
	}
	for _, file := range []string{"net/netstat", "net/snmp"} {
		if err := r.lines(file, read); err != nil {
			return err
		}
	}
	err := r.lines("net/snmp6", func(fields []string) error { // "Ip6InOctets  1234"
		protocol, field, cut := strings.Cut(fields[0], "6")
		if len(fields) != 2 || !cut {
			return nil
		}
		return r.netstatField(protocol+"6_"+field, fields[1])
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (r *reader) netstatField(name, text string) error {
	if !netstatFields.MatchString(name) {
		return nil
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return err
	}
	r.Untyped("node_netstat_"+name, "Statistic "+strings.ReplaceAll(name, "_", "")+".", value)
	return nil
}

func (r *reader) sockstat() error {
	stat, err := r.fs.NetSockstat()
	if err != nil {
		return err
	}
	if stat.Used != nil {
		r.Gauge("node_sockstat_sockets_used", "Number of IPv4 sockets in use.", float64(*stat.Used))
	}
	page := float64(os.Getpagesize())
	for _, p := range stat.Protocols {
		gauge := func(name string, value float64) {
			r.Gauge("node_sockstat_"+p.Protocol+"_"+name, "Number of "+p.Protocol+" sockets in state "+name+".", value)
		}
		gauge("inuse", float64(p.InUse))
		for name, value := range map[string]*int{"orphan": p.Orphan, "tw": p.TW, "alloc": p.Alloc, "mem": p.Mem} {
			if value != nil {
				gauge(name, float64(*value))
			}
		}
		if p.Mem != nil {
			gauge("mem_bytes", float64(*p.Mem)*page)
		}
	}
	return nil
}

// conntrack adds no metrics if connection tracking is not in use.
func (r *reader) conntrack() error {
	for _, m := range []struct{ name, file, help string }{
		{"entries", "nf_conntrack_count", "Number of currently allocated flow entries for connection tracking."},
		{"entries_limit", "nf_conntrack_max", "Maximum size of connection tracking table."},
	} {
		text, err := os.ReadFile(filepath.Join(r.proc, "sys/net/netfilter", m.file))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		if err != nil {
			return err
		}
		r.Gauge("node_nf_conntrack_"+m.name, m.help, value)
	}
	return nil
}
