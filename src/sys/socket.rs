//! Socket calls with binary addresses that guard copied from another process, and sending of descriptors.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::check_int;

/// Connects a socket to an address in the kernel's binary format (`sockaddr`).
pub fn connect(socket: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    let length = length_of(address)?;
    // SAFETY: the length is that of the address, which the kernel copies before it reads it.
    check_int(unsafe { libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), length) }).map(drop)
}

/// Binds a socket to an address in the kernel's binary format (`sockaddr`).
pub fn bind(socket: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    let length = length_of(address)?;
    // SAFETY: the length is that of the address, which the kernel copies before it reads it.
    check_int(unsafe { libc::bind(socket.as_raw_fd(), address.as_ptr().cast(), length) }).map(drop)
}

pub fn listen(socket: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    // SAFETY: all arguments are plain integers.
    check_int(unsafe { libc::listen(socket.as_raw_fd(), backlog) }).map(drop)
}

fn length_of(address: &[u8]) -> io::Result<libc::socklen_t> {
    libc::socklen_t::try_from(address.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Returns the address that a socket is bound to, in the kernel's binary format (`sockaddr`).
pub fn local_address(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; 128];
    let mut length = bytes.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes and says how many there are.
    check_int(unsafe { libc::getsockname(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), &raw mut length) })?;
    bytes.truncate(length as usize);
    Ok(bytes)
}

/// Returns the address family (such as `AF_INET`) of a binary address; `None` if the address is too short.
pub fn family(address: &[u8]) -> Option<i32> {
    address.first_chunk::<2>().map(|bytes| i32::from(u16::from_ne_bytes(*bytes)))
}

/// Encodes an IPv4 or IPv6 address in the kernel's binary format (`sockaddr`).
pub fn internet_address(address: SocketAddr) -> Vec<u8> {
    let (family, port) = (|family: i32| (family as u16).to_ne_bytes(), address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => [family(libc::AF_INET).as_slice(), &port, &ip.octets(), &[0; 8]].concat(),
        // The flow information is before the address, and the scope id after it.
        IpAddr::V6(ip) => [family(libc::AF_INET6).as_slice(), &port, &[0; 4], &ip.octets(), &[0; 4]].concat(),
    }
}

/// Encodes the address of a unix socket at a path (`sockaddr_un`); `None` if the path is too long or contains a NUL
/// byte.
pub fn unix_address(path: &[u8]) -> Option<Vec<u8>> {
    if path.len() >= 108 || path.contains(&0) {
        return None;
    }
    let mut address = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    address.extend_from_slice(path);
    address.push(0);
    Some(address)
}

const ROOM_FOR_DESCRIPTORS: usize = 64;

/// Sends bytes together with a descriptor (`SCM_RIGHTS`).
pub fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: RawFd) -> io::Result<()> {
    let mut control = [0u64; ROOM_FOR_DESCRIPTORS / 8];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: these macros only compute sizes.
    let (space, length) = unsafe { (libc::CMSG_SPACE(4), libc::CMSG_LEN(4)) };
    message.msg_controllen = space as _;
    // SAFETY: the control buffer is aligned and larger than `space`, so the first header and its data lie inside it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = length as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor);
    }
    // SAFETY: the message and everything it points to live through the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives bytes, and a descriptor or `None` if the peer sent none with them. The kernel closes all further
/// descriptors. Zero bytes mean that the peer has closed the connection.
pub fn receive_with(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = [0u64; ROOM_FOR_DESCRIPTORS / 8];
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: all-zero is a valid message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: this macro only computes a size. `CMSG_SPACE` would leave room for a second descriptor, which would leak.
    message.msg_controllen = unsafe { libc::CMSG_LEN(4) } as _;
    // SAFETY: the message and everything it points to live through the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel filled in the control data; the macros stay inside `msg_controllen`.
    let descriptor = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
            let number = libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned();
            Some(OwnedFd::from_raw_fd(number))
        } else {
            None
        }
    };
    Ok((got as usize, descriptor))
}

/// Returns the inode of the TCP socket that would accept a connection to this local address; 0 if there is none.
pub fn listener_at(address: SocketAddr) -> io::Result<u64> {
    let diagnosis = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Netlink,
        nix::sys::socket::SockType::Raw,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        nix::sys::socket::SockProtocol::NetlinkSockDiag,
    )?;
    let (family, ip) = match address.ip() {
        IpAddr::V4(ip) => (libc::AF_INET as u8, [ip.octets().as_slice(), &[0; 12]].concat()),
        IpAddr::V6(ip) => (libc::AF_INET6 as u8, ip.octets().to_vec()),
    };
    // The request is a `struct nlmsghdr`, followed by a `struct inet_diag_req_v2`: family, protocol, extensions,
    // padding, states, and the socket's ports, source, destination, interface and cookie.
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    let mut request = Vec::with_capacity(72);
    request.extend_from_slice(&72u32.to_ne_bytes());
    request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    request.extend_from_slice(&[family, libc::IPPROTO_TCP as u8, 0, 0]);
    request.extend_from_slice(&u32::MAX.to_ne_bytes());
    request.extend_from_slice(&address.port().to_be_bytes());
    request.extend_from_slice(&[0; 2]);
    request.extend_from_slice(&ip);
    request.extend_from_slice(&[0; 16]);
    request.extend_from_slice(&[0; 4]);
    request.extend_from_slice(&[0xff; 8]);
    nix::sys::socket::send(diagnosis.as_raw_fd(), &request, nix::sys::socket::MsgFlags::empty())?;
    let mut answer = [0u8; 512];
    let got =
        nix::sys::socket::recv(diagnosis.as_raw_fd(), &mut answer, nix::sys::socket::MsgFlags::empty())?;
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    if kind == SOCK_DIAG_BY_FAMILY && got >= 16 + 72 {
        let inode = &answer[16 + 68..16 + 72];
        return Ok(u64::from(u32::from_ne_bytes([inode[0], inode[1], inode[2], inode[3]])));
    }
    // The answer is an error message: the negative errno follows the header.
    match -i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        libc::ENOENT => Ok(0),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

    use super::*;

    #[test]
    fn further_descriptors_are_closed() -> io::Result<()> {
        let (sender, receiver) = UnixStream::pair()?;
        let (mut kept, first) = UnixStream::pair()?;
        let (mut dropped, second) = UnixStream::pair()?;
        let both = [first.as_raw_fd(), second.as_raw_fd()];
        let bytes = [IoSlice::new(b"x")];
        let rights = [ControlMessage::ScmRights(&both)];
        sendmsg::<()>(sender.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None)?;
        drop((first, second));
        let mut buffer = [0u8; 8];
        let (got, descriptor) = receive_with(receiver.as_fd(), &mut buffer)?;
        assert_eq!((got, descriptor.is_some()), (1, true));
        // A read reports the end of a connection only when all descriptors of the other end are closed.
        dropped.set_read_timeout(Some(Duration::from_secs(10)))?;
        assert_eq!(dropped.read(&mut buffer)?, 0);
        drop(descriptor);
        kept.set_read_timeout(Some(Duration::from_secs(10)))?;
        assert_eq!(kept.read(&mut buffer)?, 0);
        Ok(())
    }
}
