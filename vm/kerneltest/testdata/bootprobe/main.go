// Command bootprobe runs in a test machine. It gets an address by DHCP, answers on TCP port 7, and
// calls the DNS and NTP servers. It prints the results on stdout and stderr, and reports on the
// console that it is ready. When the power button is pressed, it ends with status 7.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/beevik/ntp"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"golang.org/x/sys/unix"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bootprobe:", err)
		os.Exit(1)
	}
	os.Exit(7)
}

func run() error {
	console, err := os.OpenFile("/dev/ttyS0", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := configure(ctx); err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", ":7")
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, "10.77.0.1:53")
	}}
	names, err := resolver.LookupHost(ctx, "kernel.orlop.test.")
	if err != nil {
		return err
	}
	stamp, err := ntp.QueryWithOptions("10.77.0.1", ntp.QueryOptions{Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	fmt.Printf("dns %v, ntp stratum %d\n", names, stamp.Stratum)
	fmt.Fprintf(os.Stderr, "the clock shows %d\n", time.Now().Year())
	fmt.Fprintln(console, "orlop: probe is ready")
	return button()
}

// configure gives eth0 the address of a DHCP lease.
func configure(ctx context.Context) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	up, err := unix.NewIfreq("eth0")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, up); err != nil {
		return fmt.Errorf("eth0: cannot set up: %w", err)
	}
	client, err := nclient4.New("eth0", nclient4.WithTimeout(2*time.Second), nclient4.WithRetry(5))
	if err != nil {
		return err
	}
	defer client.Close()
	lease, err := client.Request(ctx)
	if err != nil {
		return fmt.Errorf("eth0: no lease: %w", err)
	}
	address, err := unix.NewIfreq("eth0")
	if err != nil {
		return err
	}
	if err := address.SetInet4Addr(lease.ACK.YourIPAddr.To4()); err != nil {
		return err
	}
	// The kernel gives an address of class A the mask /8, which suffices.
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, address); err != nil {
		return fmt.Errorf("eth0: cannot set %s: %w", lease.ACK.YourIPAddr, err)
	}
	return nil
}

// button waits for an event of an input device. The power button is the only input device.
func button() error {
	devices, err := filepath.Glob("/dev/input/event*")
	if err != nil || len(devices) == 0 {
		return fmt.Errorf("no input devices: %v", err)
	}
	pressed := make(chan error, len(devices))
	for _, d := range devices {
		file, err := os.Open(d)
		if err != nil {
			return err
		}
		go func() {
			_, err := file.Read(make([]byte, 64))
			pressed <- err
		}()
	}
	select {
	case err := <-pressed:
		return err
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("the power button was not pressed within 2 minutes")
	}
}
