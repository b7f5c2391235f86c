package vm

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
)

// bootName is the file name of the boot image in DHCP answers.
const bootName = "boot.efi"

// Ports of the gateway that serve the boot image.
const (
	tftpPort = 69
	httpPort = 80
)

// ServeBoot offers the boot image in file (a UEFI program) to machines that boot from the network.
// The gateway sends the location of the image by DHCP, and the image by TFTP (PXE) and by HTTP
// (UEFI HTTP boot). A later call replaces the image.
func (n *Network) ServeBoot(file string) error {
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("network: cannot serve the boot image: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.bootFile != "" {
		n.bootFile = file
		return nil
	}
	all, err := n.gateway.listenPackets(tftpPort)
	if err != nil {
		return err
	}
	connections, err := n.gateway.Listen(httpPort)
	if err != nil {
		for _, requests := range all {
			requests.Close()
		}
		return err
	}
	n.bootFile = file
	for i, requests := range all {
		protocol := []tcpip.NetworkProtocolNumber{ipv4.ProtocolNumber, ipv6.ProtocolNumber}[i]
		go tftpServer{open: n.openBoot, listen: func() (net.PacketConn, error) { return n.gateway.listenPacket(0, protocol) }}.serve(requests)
		n.closers = append(n.closers, func() { requests.Close() })
	}
	web := &http.Server{Handler: http.HandlerFunc(n.answerHTTP), ReadHeaderTimeout: time.Minute}
	go web.Serve(connections)
	n.closers = append(n.closers, func() { web.Close() })
	return nil
}

// offered returns the path of the boot image; empty before ServeBoot.
func (n *Network) offered() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.bootFile
}

func (n *Network) openBoot(name string) (*os.File, error) {
	if name != bootName {
		return nil, fmt.Errorf("there is no %s, only %s", name, bootName)
	}
	return os.Open(n.offered())
}

func (n *Network) answerHTTP(w http.ResponseWriter, r *http.Request) {
	f, err := n.openBoot(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer f.Close()
	http.ServeContent(w, r, bootName, time.Time{}, f)
}

// offerBoot adds the location of the boot image to reply, if m is the request of a firmware that
// boots from the network (UEFI 2.10, sections 24.3 for PXE and 24.7 for HTTP).
func (n *Network) offerBoot(m, reply *dhcpv4.DHCPv4) {
	switch class := m.ClassIdentifier(); {
	case strings.HasPrefix(class, "PXEClient"):
		reply.UpdateOption(dhcpv4.OptBootFileName(bootName)) // the field siaddr names the server
	case strings.HasPrefix(class, "HTTPClient"):
		reply.UpdateOption(dhcpv4.OptClassIdentifier("HTTPClient"))
		reply.UpdateOption(dhcpv4.OptBootFileName(fmt.Sprintf("http://%s/%s", n.gateway.addr, bootName)))
	}
}

// firmwareNumber is the enterprise number of Intel, which UEFI firmware sends in its vendor class
// (PXE specification; EDK II, PxeBcDhcp6.c).
const firmwareNumber = 343

// offerBoot6 adds the location of the boot image to reply, if m is the request of a firmware that
// boots from the network by IPv6 (UEFI 2.10, sections 24.3 for PXE with RFC 5970, and 24.7 for
// HTTP).
func (r router) offerBoot6(m, reply *dhcpv6.Message) {
	for _, class := range m.Options.VendorClass(firmwareNumber) {
		scheme := ""
		switch text := string(class); {
		case strings.HasPrefix(text, "PXEClient"):
			scheme = "tftp"
		case strings.HasPrefix(text, "HTTPClient"):
			scheme = "http"
			reply.AddOption(&dhcpv6.OptVendorClass{EnterpriseNumber: firmwareNumber, Data: [][]byte{[]byte("HTTPClient")}})
		default:
			continue
		}
		reply.AddOption(dhcpv6.OptBootFileURL(fmt.Sprintf("%s://[%s]/%s", scheme, r.n.gateway.six, bootName)))
		return
	}
}
