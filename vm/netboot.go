package vm

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// bootName is what the boot image is called in offers.
const bootName = "boot.efi"

// Ports of the gateway where machines get their boot image.
const (
	tftpPort = 69
	httpPort = 80
)

// ServeBoot has the network offer a boot image (a UEFI program) to machines that want to boot from
// it: by DHCP where it is, by TFTP (PXE) and by HTTP (UEFI HTTP boot) the file itself. Called
// again, it offers another file.
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
	requests, err := n.gateway.ListenPacket(tftpPort)
	if err != nil {
		return err
	}
	connections, err := n.gateway.Listen(httpPort)
	if err != nil {
		requests.Close()
		return err
	}
	n.bootFile = file
	go tftpServer{open: n.openBoot, listen: func() (net.PacketConn, error) { return n.gateway.ListenPacket(0) }}.serve(requests)
	web := &http.Server{Handler: http.HandlerFunc(n.answerHTTP), ReadHeaderTimeout: time.Minute}
	go web.Serve(connections)
	n.closers = append(n.closers, func() { requests.Close(); web.Close() })
	return nil
}

// offered is the boot image; empty: none.
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

// offerBoot tells a firmware that asks for a boot image where it is: UEFI 2.10, sections 24.3 (PXE)
// and 24.7 (HTTP).
func (n *Network) offerBoot(m, reply *dhcpv4.DHCPv4) {
	switch class := m.ClassIdentifier(); {
	case strings.HasPrefix(class, "PXEClient"):
		reply.UpdateOption(dhcpv4.OptBootFileName(bootName)) // from the server that siaddr names
	case strings.HasPrefix(class, "HTTPClient"):
		reply.UpdateOption(dhcpv4.OptClassIdentifier("HTTPClient"))
		reply.UpdateOption(dhcpv4.OptBootFileName(fmt.Sprintf("http://%s/%s", n.Gateway(), bootName)))
	}
}
